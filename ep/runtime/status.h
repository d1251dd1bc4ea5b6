// Why work of a stream did not run to its end. Whatever came behind the failed work, on its stream and on those that
// waited for it, was skipped and carries the same object: docs/decisions/0012.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/error.h"

namespace npu {

struct Failure {
  std::string message;  // "[npu_rms_norm] expected …"
};
using Status = std::shared_ptr<const Failure>;  // null: nothing failed

inline Status MakeFailure(std::string message) { return std::make_shared<const Failure>(Failure{Printable(message)}); }

// Thrown by a task whose work depends on what failed elsewhere: its stream carries the same failure on.
class FailedBefore : public Error {
 public:
  explicit FailedBefore(Status status) : Error(ErrorCode::kDeviceError, status->message), status_(std::move(status)) {}
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

inline void ThrowIfFailed(const Status& status) {
  if (status != nullptr) [[unlikely]]
    throw FailedBefore(status);
}

// What a wait for several things has to tell: each failure once.
class Failures {
 public:
  void Add(Status status) {
    if (status == nullptr || std::find(all_.begin(), all_.end(), status) != all_.end()) return;
    all_.push_back(std::move(status));
  }
  void ThrowIfAny() const {
    if (all_.size() < 2) return ThrowIfFailed(all_.empty() ? nullptr : all_[0]);
    std::string message = all_[0]->message;
    for (size_t i = 1; i < all_.size(); ++i) message += "; and on another stream: " + all_[i]->message;
    throw Error(ErrorCode::kDeviceError, message);
  }

 private:
  std::vector<Status> all_;
};

}  // namespace npu
