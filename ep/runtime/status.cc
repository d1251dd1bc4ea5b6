#include "ep/runtime/status.h"

#include <atomic>

namespace npu {

Status MakeFailure(const std::string& message) {
  static std::atomic<uint64_t> last{0};
  return std::make_shared<const Failure>(Printable(message), ++last);
}

Status Arrival(const Failure& failure) { return std::make_shared<const Failure>(failure.message, failure.number); }

}  // namespace npu
