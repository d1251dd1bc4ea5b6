#include "python/csrc/torch_distributed/roll_call.h"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <thread>

namespace npu::distributed {
namespace {

constexpr std::chrono::seconds kPatience{5};  // the transport tells of a lost rank within milliseconds
constexpr std::chrono::milliseconds kPause{50};

std::string Phrase(const std::string& missing) {
  return c10::str("; no report of it from rank ", missing, ", which ended, stands still or is late");
}

}  // namespace

std::string RollCall::Missing(const std::string& call) {
  const std::lock_guard lock(mutex_);
  try {
    if (missing_.empty()) missing_ = Call(call);
  } catch (const std::exception&) {
    return "; the group's store, usually of rank 0, does not answer";
  }
  return missing_.empty() ? "; all ranks report a failure" : Phrase(missing_);
}

std::string RollCall::Known() {
  const std::lock_guard lock(mutex_);
  return missing_.empty() ? "" : Phrase(missing_);
}

std::string RollCall::Call(const std::string& call) const {
  const auto key = [&call](int rank) { return c10::str("hccl_failed/", call, "/", rank); };
  store_->set(key(rank_), "");
  std::string missing;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int rank = 0; rank < size_; ++rank) {
    bool reported = store_->check({key(rank)});
    while (!reported && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      reported = store_->check({key(rank)});
    }
    if (!reported) missing += c10::str(missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

}  // namespace npu::distributed
