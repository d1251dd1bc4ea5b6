#include "ep/runtime/store_element.h"

#include <array>
#include <cstring>

#include "ep/runtime/error.h"

namespace npu {

void StoreElement(Stream& stream, void* to, const void* element, size_t bytes) {
  NPU_CHECK(bytes <= kMaxElementBytes, "[scalar] expected an element of at most ", kMaxElementBytes, " bytes, got ",
            bytes);
  std::array<std::byte, kMaxElementBytes> kept;
  std::memcpy(kept.data(), element, bytes);
  stream.Launch("scalar", [to, kept, bytes] { std::memcpy(to, kept.data(), bytes); });
}

}  // namespace npu
