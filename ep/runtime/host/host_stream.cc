#include "ep/runtime/host/host_stream.h"

#include <exception>
#include <new>
#include <utility>

#include "ep/runtime/blocking.h"
#include "ep/runtime/error.h"
#include "ep/runtime/thread_pool.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

// A producer this far ahead waits for the stream, so that an endless loop of launches has a bounded queue (about 8 MB),
// and an endless loop of copies has bounded memory.
constexpr uint64_t kMaxPending = 16384;
constexpr size_t kMaxPendingBytes = size_t{64} << 20;

thread_local const HostStream* current_stream = nullptr;  // set on worker threads

Status FailureOf(const char* op, const char* what) {
  const std::string prefix = Concat("[", op, "] ");
  std::string message = what;
  return MakeFailure(message.starts_with(prefix) ? std::move(message) : prefix + message);
}

}  // namespace

HostStream::HostStream(std::string thread_name, int device) : thread_name_(std::move(thread_name)), device_(device) {}

HostStream::~HostStream() {
  if (InForkedChild()) {  // the worker exists only in the parent
    if (worker_.joinable()) worker_.detach();
    return;
  }
  queue_.Close();
  if (worker_.joinable()) worker_.join();
}

void HostStream::Launch(const char* op, Task task, size_t held_bytes) {
  Throttle();
  if (!blocking_.load(std::memory_order_relaxed) || current_stream == this)
    return Enqueue({.task = std::move(task), .op = op, .held_bytes = held_bytes});
  const MayBlock scope;
  Command command{.task = std::move(task), .op = op, .held_bytes = held_bytes};
  if (RunOnCaller(command)) return;
  Enqueue(std::move(command));
  Mark()->Wait();
}

bool HostStream::RunOnCaller(Command& command) {
  RefuseForkedChild();  // the pool's threads exist only in the parent, too
  const std::lock_guard lock(run_mutex_);
  if (queue_.pending() != 0) return false;
  on_caller_.store(true, std::memory_order_release);
  const HostStream* const outer = std::exchange(current_stream, this);
  const StreamProgress* const worker_of = HostMarker::SetWorkerOf(queue_.progress().get());
  SetPoolDevice(device_);
  Run(command);
  command.task.Reset();  // before the work counts as done, as in the queue
  HostMarker::SetWorkerOf(worker_of);
  current_stream = outer;
  on_caller_.store(false, std::memory_order_release);
  return true;
}

void HostStream::LaunchAlways(const char* op, std::function<void(const Status&)> task) {
  Enqueue({.task = Task([this, task = std::move(task)] { task(status()); }), .op = op, .survives_errors = true});
}

std::shared_ptr<HostMarker> HostStream::Mark() {
  auto marker = std::make_shared<HostMarker>(queue_.progress());
  if (!queue_.never_used() || on_caller_.load(std::memory_order_acquire)) {
    Enqueue({.marker = marker});
  } else {
    marker->Stamp(status());  // it has passed and needs no thread
  }
  return marker;
}

void HostStream::WaitFor(std::shared_ptr<HostMarker> marker) {
  if (marker->passed() && marker->status() == nullptr) return;
  auto wait = [this, marker = std::move(marker)] {
    marker->Wait();
    if (marker->status() != nullptr) Stop(Arrival(*marker->status()));
  };
  Enqueue({.task = Task(std::move(wait)), .op = "wait", .survives_errors = true});
}

Status HostStream::Synchronize() {
  if (Idle()) return status();
  const auto marker = Mark();
  marker->Wait();
  return marker->status();
}

void HostStream::Resume(Status failure) {
  if (queue_.never_used() && !failed_.load(std::memory_order_acquire)) return;
  auto resume = [this, failure = std::move(failure)] {
    std::lock_guard lock(status_mutex_);
    if (failure != nullptr && failure != status_) return;
    status_ = nullptr;
    failed_.store(false, std::memory_order_release);
  };
  Enqueue({.task = Task(std::move(resume)), .op = "resume", .survives_errors = true});
}

void HostStream::Enqueue(Command command) {
  RefuseForkedChild();
  EnsureWorker();
  queue_.Push(std::move(command));
}

// The thread starts at first use: streams are created freely and many never run anything.
void HostStream::EnsureWorker() {
  if (started_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(start_mutex_);
  if (started_.load(std::memory_order_relaxed)) return;
  worker_ = StartWorkerThread(thread_name_, [this] { Work(); });
  started_.store(true, std::memory_order_release);
}

void HostStream::Throttle() {
  if (queue_.pending() < kMaxPending && queue_.pending_bytes() < kMaxPendingBytes) [[likely]]
    return;
  if (current_stream != nullptr) return;  // workers are not throttled: the awaited stream may wait for theirs
  const MayBlock scope;
  Mark()->Wait();
}

void HostStream::Work() {
  current_stream = this;
  SetPoolDevice(device_);
  HostMarker::SetWorkerOf(queue_.progress().get());
  while (Command* command = queue_.Front()) {
    std::unique_lock lock(run_mutex_, std::defer_lock);
    if (blocking_.load(std::memory_order_relaxed)) lock.lock();
    if (command->marker != nullptr) {
      const auto marker = std::move(command->marker);
      marker->Stamp(status());
      queue_.Pop();
      marker->Wake();
    } else {
      Run(*command);
      queue_.Pop();
    }
  }
}

void HostStream::Run(Command& command) {
  if (failed_.load(std::memory_order_relaxed) && !command.survives_errors) return;
  try {
    command.task();
  } catch (const FailedBefore& e) {
    Stop(Arrival(*e.status()));
  } catch (const std::bad_alloc&) {
    Stop(FailureOf(command.op, "out of host memory"));
  } catch (const std::exception& e) {
    Stop(FailureOf(command.op, e.what()));
  } catch (...) {
    Stop(FailureOf(command.op, "unknown exception"));
  }
}

void HostStream::Stop(Status status) {
  std::lock_guard lock(status_mutex_);
  if (status_ == nullptr) status_ = std::move(status);
  failed_.store(true, std::memory_order_release);
}

Status HostStream::status() const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return nullptr;
  std::lock_guard lock(status_mutex_);
  return status_;
}

}  // namespace npu
