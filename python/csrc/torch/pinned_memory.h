// Host memory that a device may read and write while the host goes on. It is given back only when the copies
// that use it are done.
#pragma once

#include <cstddef>

#include "ep/runtime/allocator.h"
#include "ep/runtime/stream.h"

namespace npu::aten {

void* AllocatePinned(size_t bytes);  // throws when there is none
void FreePinned(void* address);
bool IsPinned(const void* address);  // anywhere within such memory

struct PinnedMemoryStats {
  StatCounter blocks, bytes;                // that the system gave
  StatCounter active_blocks, active_bytes;  // that somebody holds
};
PinnedMemoryStats GetPinnedMemoryStats();
void ResetPinnedMemoryStats(bool peaks);  // the peaks, or what was accumulated

// Work enqueued on `stream` so far uses the memory around `address`.
void RecordPinnedUse(const void* address, Stream& stream);

}  // namespace npu::aten
