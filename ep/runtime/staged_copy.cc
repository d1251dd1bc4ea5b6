#include "ep/runtime/staged_copy.h"

#include <cstring>
#include <utility>
#include <vector>

namespace npu {

void LaunchStagedCopy(Stream& stream, void* to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const char*>(from);
  auto copy = [to, staged = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); };
  stream.Launch("copy", std::move(copy), /*held_bytes=*/bytes);
}

}  // namespace npu
