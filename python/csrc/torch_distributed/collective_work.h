// A collective under way: its inputs are still computed, its ranks still exchange them, or its results are copied back.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "python/csrc/torch_distributed/exchange.h"
#include "python/csrc/torch_distributed/roll_call.h"

namespace npu::distributed {

class CollectiveWork final : public c10d::Work {
 public:
  // `call` names it to the roll call, the same on all ranks that take part. Within `limit` an error names those that do
  // not.
  CollectiveWork(std::unique_ptr<Exchange> exchange, c10d::OpType type, int rank, int size, std::string call,
                 std::chrono::milliseconds limit, std::shared_ptr<RollCall> roll_call);

  // Two steps, for the threads of a group. An error in one of them is the work's.
  // Waits for the inputs, then calls `begin`.
  void Begin(const std::function<void()>& begin);
  // Waits for the exchange among the hosts that `exchange` starts, copies the results to the device after `adapt` of
  // each, and tells who waits.
  void End(const std::function<c10::intrusive_ptr<c10d::Work>()>& exchange,
           const std::function<void(at::Tensor&)>& adapt);

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return future_->hasError() ? future_->exception_ptr() : nullptr; }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // The caller waits until the ranks have exchanged their data, its current stream until the results are on the device.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { future_->waitAndThrow(); }
  void abort() override;
  // Its callbacks may call collectives and wait for them.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void Fail(std::exception_ptr error, const std::string& missing);

  std::unique_ptr<Exchange> exchange_;  // until the end
  const std::string name_;              // of the collective and the rank, for errors
  const std::string call_;
  const std::chrono::milliseconds limit_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<RollCall> roll_call_;
  c10::intrusive_ptr<c10d::Work> host_;  // guarded by mutex_ while the work is under way
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace npu::distributed
