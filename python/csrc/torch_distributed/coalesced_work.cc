#include "python/csrc/torch_distributed/coalesced_work.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <algorithm>

namespace npu::distributed {

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_)
    if (std::exception_ptr error = work->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_)
    for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
  return all;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void CoalescedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  const c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(type));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [futures](c10::ivalue::Future&) {
        std::vector<at::Tensor> all;
        for (const c10::intrusive_ptr<c10::ivalue::Future>& future : futures.vec())
          for (at::Tensor& tensor : future->value().toTensorVector()) all.push_back(std::move(tensor));
        return c10::IValue(std::move(all));
      },
      type);
}

}  // namespace npu::distributed
