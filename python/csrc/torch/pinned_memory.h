// Host memory that a device may read and write while the host goes on. It is given back only when the copies
// that use it are done.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"

namespace npu::aten {

void* AllocatePinned(size_t bytes);  // throws when there is none
void FreePinned(void* address);
bool IsPinned(const void* address);  // anywhere within such memory
// Work enqueued on `stream` so far uses the memory around `address`.
void RecordPinnedUse(const void* address, Stream& stream);

}  // namespace npu::aten
