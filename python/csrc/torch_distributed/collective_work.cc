#include "python/csrc/torch_distributed/collective_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "python/csrc/torch_distributed/job_thread.h"

namespace npu::distributed {
namespace {

thread_local size_t callback_depth = 0;  // of the callback that this thread runs; 0 outside

// The thread of the callbacks that are registered in callbacks of the depth before; the first of those elsewhere. They
// run one after the other, so that the ranks' callbacks make their calls in one order. A callback that waits for a
// collective leaves the next depth free to complete it. The threads last: a callback may run while the process ends.
JobThread& CallbackThread(size_t depth) {
  static auto& mutex = *new std::mutex;
  static auto& threads = *new std::deque<JobThread>;
  const std::lock_guard lock(mutex);
  while (threads.size() < depth) threads.emplace_back("npu_hccl_then");
  return threads[depth - 1];
}

}  // namespace

CollectiveWork::CollectiveWork(std::unique_ptr<Exchange> exchange, c10d::OpType type, int rank, int size,
                               std::string call, std::chrono::milliseconds limit, std::shared_ptr<RollCall> roll_call)
    : Work(rank, type),
      exchange_(std::move(exchange)),
      name_(c10::str("[hccl] ", exchange_->op(), " on rank ", rank, " of ", size)),
      call_(std::move(call)),
      limit_(limit),
      outputs_(exchange_->Outputs()),
      roll_call_(std::move(roll_call)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{exchange_->device()})) {}

void CollectiveWork::Begin(const std::function<void()>& begin) {
  try {
    exchange_->WaitForInputs();
    if (begin) begin();
  } catch (...) {
    Fail(std::current_exception(), roll_call_->Known());
  }
}

void CollectiveWork::End(const std::function<c10::intrusive_ptr<c10d::Work>()>& exchange,
                         const std::function<void(at::Tensor&)>& adapt) {
  if (future_->completed()) return;  // it failed at its beginning
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (c10::intrusive_ptr<c10d::Work> host = exchange()) {
      {
        const std::lock_guard lock(mutex_);
        host_ = host;
      }
      host->wait();
    }
  } catch (const c10::ValueError&) {  // the ranks are all there, and disagree
    return Fail(std::current_exception(), "");
  } catch (...) {
    return Fail(std::current_exception(), roll_call_->Missing(call_, Since(begin), limit_));
  }
  try {
    const c10::Device device = exchange_->device();
    const c10::StreamGuard stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    // The tensors may be leaves, or saved for a backward pass: what a collective writes is no change that autograd
    // counts.
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool inference =
        std::any_of(outputs_.begin(), outputs_.end(), [](const at::Tensor& output) { return output.is_inference(); });
    const c10::InferenceMode mode(inference);  // elsewhere its tensors refuse to be written
    exchange_->CopyBack(adapt);
    exchange_.reset();
    future_->markCompleted(c10::IValue(outputs_));
    finish();
  } catch (...) {
    Fail(std::current_exception(), "");
  }
}

int CollectiveWork::sourceRank() const {
  TORCH_CHECK(isSuccess() && host_, name_, " has no source rank before it has ended");
  return host_->sourceRank();
}

void CollectiveWork::abort() {
  const std::lock_guard lock(mutex_);
  if (host_) host_->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  if (future_->completed()) return future_;
  c10::intrusive_ptr<c10::ivalue::Future> told = future_->createInstance(future_->elementType());
  future_->addCallback(
      [told, ended = future_, depth = callback_depth + 1](c10::ivalue::Future&) {
        CallbackThread(depth).Add([told, ended, depth] {
          callback_depth = depth;
          if (ended->hasError()) return told->setError(ended->exception_ptr());
          const c10::Device device = ended->devices().front();
          const c10::StreamGuard stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
          ended->wait();  // this stream, for the results
          told->markCompleted(ended->value());
        });
      },
      /*uses_future=*/false);
  return told;
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK_WITH(DistBackendError, cv_.wait_for(lock, timeout, [this] { return completed_; }), name_,
                     " did not end within ", timeout.count(), " ms");
  }
  future_->waitAndThrow();
  return true;
}

void CollectiveWork::Fail(std::exception_ptr error, const std::string& missing) {
  std::string why = "unknown error";
  try {
    std::rethrow_exception(std::move(error));
  } catch (const c10::Error& e) {
    why = e.what_without_backtrace();
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
  }
  if (const size_t advice = why.find(". This is typically"); advice != std::string::npos) why.resize(advice);  // gloo's
  error = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, c10::str(name_, " failed", missing, ": ", why)));
  exchange_.reset();
  future_->setError(error);
  finish(error);
}

}  // namespace npu::distributed
