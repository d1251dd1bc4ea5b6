// Several works of a group as one, for calls between the start and the end of coalescing.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace npu::distributed {

class CoalescedWork final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CoalescedWork(int rank, Works works) : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;  // the first one
  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout) override;  // of each
  void synchronize() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const Works works_;
};

}  // namespace npu::distributed
