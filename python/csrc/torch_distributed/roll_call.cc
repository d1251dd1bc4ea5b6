#include "python/csrc/torch_distributed/roll_call.h"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <thread>

namespace npu::distributed {
namespace {

constexpr std::chrono::seconds kPatience{5};  // the transport tells of a lost rank within milliseconds
constexpr std::chrono::milliseconds kPause{50};
constexpr std::chrono::milliseconds kNoticeable{500};  // by which ranks that call at the same time do not differ

std::string Phrase(const std::string& missing) {
  return c10::str("; no report of it from rank ", missing, ", which ended, stands still or is late");
}

}  // namespace

std::string RollCall::Missing(const std::string& call, std::chrono::milliseconds waited) {
  const std::lock_guard lock(mutex_);
  if (!missing_.empty()) return Phrase(missing_);
  Answer answer;
  try {
    answer = Call(call, waited);
  } catch (const std::exception&) {
    return "; the group's store, usually of rank 0, does not answer";
  }
  missing_ = answer.missing;
  if (!missing_.empty()) return Phrase(missing_);
  return answer.late.empty() ? "; all ranks report a failure" : "; rank " + answer.late + " was late";
}

std::string RollCall::Known() {
  const std::lock_guard lock(mutex_);
  return missing_.empty() ? "" : Phrase(missing_);
}

RollCall::Answer RollCall::Call(const std::string& call, std::chrono::milliseconds waited) const {
  const auto key = [&call](int rank) { return c10::str("hccl_failed/", call, "/", rank); };
  store_->set(key(rank_), std::to_string(waited.count()));
  Answer answer;
  const auto add = [](std::string& ranks, int rank) { ranks += c10::str(ranks.empty() ? "" : ", ", rank); };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int rank = 0; rank < size_; ++rank) {
    bool reported = store_->check({key(rank)});
    while (!reported && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      reported = store_->check({key(rank)});
    }
    if (!reported) {
      add(answer.missing, rank);
    } else if (2 * std::stoll(store_->get_to_str(key(rank))) + kNoticeable.count() < waited.count()) {
      add(answer.late, rank);
    }
  }
  return answer;
}

}  // namespace npu::distributed
