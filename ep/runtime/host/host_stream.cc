#include "ep/runtime/host/host_stream.h"

#include <exception>
#include <new>
#include <utility>

#include "ep/runtime/error.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

// A producer this far ahead waits for the stream, so that an endless loop of launches has a bounded
// queue (about 8 MB).
constexpr uint64_t kMaxPending = 16384;

thread_local const HostStream* current_stream = nullptr;  // on a worker: whose

}  // namespace

HostStream::HostStream(std::string thread_name) : thread_name_(std::move(thread_name)) {}

HostStream::~HostStream() {
  if (InForkedChild()) {  // the worker stayed with the parent
    if (worker_.joinable()) worker_.detach();
    return;
  }
  queue_.Close();
  if (worker_.joinable()) worker_.join();
}

void HostStream::Launch(const char* op, Task task) {
  Throttle();
  Enqueue({.task = std::move(task), .op = op});
  if (blocking_.load(std::memory_order_relaxed) && current_stream != this) Mark()->Wait();
}

std::shared_ptr<HostMarker> HostStream::Mark() {
  auto marker = std::make_shared<HostMarker>(queue_.progress());
  if (!queue_.never_used()) Enqueue({.marker = marker});  // else it has passed, and needs no thread
  return marker;
}

void HostStream::WaitFor(std::shared_ptr<HostMarker> marker) {
  if (marker->passed()) return;
  Enqueue({.task = Task([marker = std::move(marker)] { marker->Wait(); }), .op = "wait", .survives_errors = true});
}

std::string HostStream::Synchronize() {
  if (current_stream == this)
    Fail(ErrorCode::kInvalidArgument, "a task of a stream cannot synchronize that stream: it would wait for itself");
  if (!Idle()) Mark()->Wait();
  if (!failed_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(error_mutex_);
  failed_.store(false, std::memory_order_release);
  return std::exchange(error_, {});
}

void HostStream::Enqueue(Command command) {
  if (InForkedChild()) [[unlikely]]
    Fail(ErrorCode::kUnsupported,
         "the NPU cannot be used in a process that was forked after the NPU was first used; start processes with "
         "'spawn' instead of 'fork'");
  EnsureWorker();
  queue_.Push(std::move(command));
}

// The thread starts at the first use: streams are made freely and many never run anything.
void HostStream::EnsureWorker() {
  if (started_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(start_mutex_);
  if (started_.load(std::memory_order_relaxed)) return;
  worker_ = StartWorkerThread(thread_name_, [this] { Work(); });
  started_.store(true, std::memory_order_release);
}

void HostStream::Throttle() {
  // A worker is never held back: the stream it waits for may wait for it.
  if (queue_.pending() < kMaxPending || current_stream != nullptr) return;
  Mark()->Wait();
}

void HostStream::Work() {
  current_stream = this;
  while (Command* command = queue_.Front()) {
    if (command->marker != nullptr) {
      const auto marker = std::move(command->marker);
      marker->Stamp();
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
  } catch (const std::bad_alloc&) {
    KeepError(command.op, "out of host memory");
  } catch (const std::exception& e) {
    KeepError(command.op, e.what());
  } catch (...) {
    KeepError(command.op, "unknown exception");
  }
}

void HostStream::KeepError(const char* op, const char* what) {
  const std::string prefix = Concat("[", op, "] ");
  const std::string message = what;
  std::lock_guard lock(error_mutex_);
  error_ = message.compare(0, prefix.size(), prefix) == 0 ? message : prefix + message;
  failed_.store(true, std::memory_order_release);
}

}  // namespace npu
