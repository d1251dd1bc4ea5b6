#include "python/csrc/torch_distributed/roll_call.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace npu::distributed {
namespace {

// Of the time for reports: the transport tells all ranks of a lost one within milliseconds.
constexpr std::chrono::milliseconds kLeastPatience{200}, kMostPatience{5000};
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

std::string RollCall::Missing(const std::string& call, std::chrono::milliseconds waited,
                              std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  if (!missing_.empty()) return missing_;
  try {
    const RankReports reports = Call(call, waited, std::clamp(limit - waited, kLeastPatience, kMostPatience));
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

RankReports RollCall::Call(const std::string& call, std::chrono::milliseconds waited,
                           std::chrono::milliseconds patience) const {
  const auto key = [&call](int rank) { return c10::str("hccl_failed/", call, "/", rank); };
  store_->set(key(rank_), std::to_string(waited.count()));
  RankReports reports(static_cast<size_t>(size_));
  const auto deadline = std::chrono::steady_clock::now() + patience;
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
