// Which ranks have not noticed a failure that this one sees: they ended, or stand still.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ep/runtime/roll_call.h"

namespace npu::distributed {

inline std::chrono::milliseconds Since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

// How long the transport waits in a call with this limit of time: the rest is for the roll call.
inline std::chrono::milliseconds TimeOfExchange(std::chrono::milliseconds limit) {
  return limit - TimeForReports(limit);
}

class RollCall {
 public:
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // Reports this rank's failure of `call`, a name that all ranks give it, to the group's store, and waits for the
  // others' reports, some seconds, but not beyond the call's `limit` of time. The answer is a phrase for the error: who
  // does not report, or who had waited in the call much less than this rank's `waited`. Once ranks are missing it stays
  // the same, because the group is of no more use.
  std::string Missing(const std::string& call, std::chrono::milliseconds waited, std::chrono::milliseconds limit);
  std::string Known();  // the ranks that an earlier call found missing, or nothing

 private:
  RankReports Call(const std::string& call, std::chrono::milliseconds waited, std::chrono::milliseconds patience) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  std::mutex mutex_;
  std::string missing_;
};

}  // namespace npu::distributed
