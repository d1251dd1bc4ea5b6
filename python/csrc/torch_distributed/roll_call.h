// Which ranks have not noticed a failure that this one sees: they ended, or stand still.
#pragma once

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace npu::distributed {

class RollCall {
 public:
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // Reports this rank's failure of `call`, a name that all ranks give it, to the group's store, and waits some seconds
  // for the others' reports. The answer is a phrase for the error. Once ranks are missing it stays the same, because
  // the group is of no more use.
  std::string Missing(const std::string& call);
  std::string Known();  // the ranks that an earlier call found missing, or nothing

 private:
  // The ranks that report nothing, with commas between.
  std::string Call(const std::string& call) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  std::mutex mutex_;
  std::string missing_;
};

}  // namespace npu::distributed
