#include "python/csrc/torch_distributed/job_thread.h"

#include "ep/runtime/worker_thread.h"

namespace npu::distributed {

JobThread::~JobThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void JobThread::Add(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = StartWorkerThread(name_, [this] { Run(); });
  }
  changed_.notify_one();
}

void JobThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // its tensors are freed without the lock
    lock.lock();
  }
}

}  // namespace npu::distributed
