// One element that the host knows, written to device memory in stream order.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"

namespace npu {

inline constexpr size_t kMaxElementBytes = 16;

// The element is read now; `to` is device memory of as many bytes.
void StoreElement(Stream& stream, void* to, const void* element, size_t bytes);

}  // namespace npu
