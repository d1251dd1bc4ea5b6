// Equal packed weights of the process are stored once: two sessions of one model read the same panels, also when each
// has an onnxruntime of its own.
#pragma once

#include <cstddef>

namespace npu {
class CachingAllocator;
}

namespace npu::gemm {

// Called by the task that packed `panels`, memory of `allocator` that is not written any more. Returns memory with the
// same bytes: that of an earlier call, and `panels` is freed, or `panels` itself. Each call has its ReleasePanels.
void* SharePanels(CachingAllocator& allocator, void* panels, size_t bytes);

// Frees the memory when nobody else reads it; also memory that SharePanels has not seen.
void ReleasePanels(CachingAllocator& allocator, void* panels) noexcept;

}  // namespace npu::gemm
