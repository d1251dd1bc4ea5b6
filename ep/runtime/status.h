// Why work of a stream failed. Everything behind the failed work, on its stream and on those that waited for it, was
// skipped and carries the same failure: docs/decisions/0012.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/error.h"

namespace npu {

struct Failure {
  Failure(std::string what, uint64_t which) : message(std::move(what)), number(which) {}

  const std::string message;  // "[npu_rms_norm] expected …"
  const uint64_t number;      // identifies the failure, on every stream that it reaches

  // Whether the stream that this failure reached was resumed since. A thread that saw it before must not treat it as a
  // new failure. Guarded by the stream's users.
  mutable bool resumed = false;
};
using Status = std::shared_ptr<const Failure>;  // null: nothing failed

Status MakeFailure(const std::string& message);
// The same failure as it reaches another stream, or the same one again.
Status Arrival(const Failure& failure);

// Thrown by a task whose work depends on work that failed elsewhere: its stream propagates the same failure.
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

// The failures that a wait for several streams or events reports, each once.
class Failures {
 public:
  void Add(Status status) {
    if (status == nullptr) return;
    const auto same = [&](const Status& other) { return other->number == status->number; };
    if (std::none_of(all_.begin(), all_.end(), same)) all_.push_back(std::move(status));
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
