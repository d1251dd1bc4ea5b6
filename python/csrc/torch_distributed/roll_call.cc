#include "python/csrc/torch_distributed/roll_call.h"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <thread>

namespace npu::distributed {
namespace {

constexpr std::chrono::seconds kPatience{5};  // the transport tells of a lost rank within milliseconds
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

std::string RollCall::Missing(const std::string& call, std::chrono::milliseconds waited) {
  const std::lock_guard lock(mutex_);
  if (!missing_.empty()) return missing_;
  try {
    const RankReports reports = Call(call, waited);
    missing_ = DescribeMissing(reports);
    return DescribeFailure(reports);
  } catch (const std::exception&) {
    return "; the group's store, usually of rank 0, does not answer";
  }
}

std::string RollCall::Known() {
  const std::lock_guard lock(mutex_);
  return missing_;
}

RankReports RollCall::Call(const std::string& call, std::chrono::milliseconds waited) const {
  const auto key = [&call](int rank) { return c10::str("hccl_failed/", call, "/", rank); };
  store_->set(key(rank_), std::to_string(waited.count()));
  RankReports reports(static_cast<size_t>(size_));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int rank = 0; rank < size_; ++rank) {
    bool reported = store_->check({key(rank)});
    while (!reported && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      reported = store_->check({key(rank)});
    }
    if (reported)
      reports[static_cast<size_t>(rank)] = std::chrono::milliseconds(std::stoll(store_->get_to_str(key(rank))));
  }
  return reports;
}

}  // namespace npu::distributed
