#include "ep/provider/session_runs.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <utility>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/blocking.h"
#include "ep/runtime/current.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/outstanding.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/worker_thread.h"

namespace npu::provider {
thread_local std::vector<std::weak_ptr<SessionRuns::Run>> SessionRuns::current;

namespace {

// If the backend can; otherwise each kernel's launches are waited for all the same (KernelAdaptor).
void MakeBlocking(Stream& stream) {
  auto* extensions = dynamic_cast<BackendExtensions*>(&stream.device().backend());
  if (extensions != nullptr) extensions->MakeBlocking(stream.handle());
}

// The sessions that threads of onnxruntime's own work for.
class ParallelSessions {
 public:
  static ParallelSessions& Instance() {
    static auto* const instance = new ParallelSessions;  // sessions may end after the program's static objects
    return *instance;
  }

  void Add(std::weak_ptr<SessionRuns> session) {
    std::lock_guard lock(mutex_);
    std::erase_if(sessions_, [](const auto& other) { return other.expired(); });
    sessions_.push_back(std::move(session));
    any_ = true;
  }

  std::vector<std::shared_ptr<SessionRuns>> All() {
    std::vector<std::shared_ptr<SessionRuns>> all;
    if (!any_) return all;
    std::lock_guard lock(mutex_);
    for (const auto& session : sessions_)
      if (auto live = session.lock()) all.push_back(std::move(live));
    return all;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::vector<std::weak_ptr<SessionRuns>> sessions_;
};

}  // namespace

SessionRuns::SessionRuns(DeviceState& device, uintptr_t compute_stream, bool blocking)
    : device_(device), compute_stream_(compute_stream), blocking_(blocking) {}

SessionRuns::~SessionRuns() = default;

Stream& SessionRuns::TakeStream() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    auto stream = device_.device().CreateStream(0, StreamOwner::kOne);
    if (blocking_) MakeBlocking(*stream);
    streams_.push_back(std::move(stream));
    return *streams_.back();
  }
  Stream* stream = idle_.back();
  idle_.pop_back();
  return *stream;
}

void SessionRuns::GiveStream(Stream& stream) {
  std::lock_guard lock(mutex_);
  idle_.push_back(&stream);
}

Stream& SessionRuns::CallerOf(uintptr_t compute_stream, const std::string& caller, bool& elsewhere) const {
  Device& device = device_.device();
  if (compute_stream == 0) compute_stream = compute_stream_;
  if (compute_stream != 0) {
    Stream* stream = device.FindStream(reinterpret_cast<const void*>(compute_stream));
    NPU_CHECK(stream != nullptr,
              "NPUExecutionProvider: user_compute_stream expected the handle of a live stream of NPU ", device.index(),
              " (torch.npu.Stream.npu_stream), got ", compute_stream);
    elsewhere = true;
    return *stream;
  }
  uint64_t id = 0, thread = 0;
  const char* end = caller.data() + caller.size();
  const auto first = std::from_chars(caller.data(), end, id);
  if (first.ptr != end) std::from_chars(first.ptr + 1, end, thread);
  // Run options may be reused: an entry created by this thread belongs to an earlier call.
  if (id != 0 && thread != ThisThreadNumber()) {
    elsewhere = true;
    if (Stream* stream = device.FindStream(id)) return *stream;
  }
  return CurrentStream(device.index());
}

void SessionRuns::Begin(uintptr_t compute_stream, const std::string& caller) {
  RefuseForkedChild();
  bool elsewhere = false;
  Stream& stream = CallerOf(compute_stream, caller, elsewhere);
  Graph::RefuseInCapture(stream,
                         "a run of a session: run it outside of torch.npu.graph, or capture it with the provider "
                         "option enable_npu_graph");
  auto run = std::make_shared<Run>(Run{.owner = this});
  Backend& backend = device_.device().backend();
  // This thread's work in other runs must not delay the caller's stream, which other threads may share.
  if (!elsewhere && Outstanding::Any()) run->after = Outstanding::Of(device_.device());
  if (!backend.StreamQuery(stream.handle()) || backend.StreamStatus(stream.handle()) != nullptr) {
    auto reached = std::make_shared<Event>(backend);
    backend.EventRecord(reached->handle(), stream.handle());
    run->after.push_back(std::move(reached));
  }
  if (!elsewhere) stream.TellNews();
  if (elsewhere) run->caller = &stream;
  std::lock_guard lock(mutex_);
  runs_.push_back(std::move(run));
  current.push_back(runs_.back());
}

std::shared_ptr<SessionRuns::Run> SessionRuns::Current() {
  while (!current.empty()) {
    if (auto run = current.back().lock()) return run;
    current.pop_back();
  }
  return nullptr;
}

void SessionRuns::Join(Run& run, Stream& stream) {
  Backend& backend = device_.device().backend();
  if (std::find(run.streams.begin(), run.streams.end(), &stream) == run.streams.end()) {
    for (const auto& event : run.after) backend.StreamWaitEvent(stream.handle(), event->handle());
    run.streams.push_back(&stream);
  }
  for (Stream* other : run.streams) {
    if (other == &stream || backend.StreamQuery(other->handle())) continue;
    const Event reached(backend);
    backend.EventRecord(reached.handle(), other->handle());
    backend.StreamWaitEvent(stream.handle(), reached.handle());
  }
}

bool SessionRuns::Enter(Stream& stream) {
  if (const auto run = Current(); run != nullptr && run->owner == this) {
    if (run->entered == &stream) return true;
    std::lock_guard lock(mutex_);
    for (const auto& other : runs_)
      if (other != run && Close(*other, stream)) Resume(stream);
    Join(*run, stream);
    run->entered = &stream;
    return true;
  }
  // One of onnxruntime's own threads, whose work belongs to any of the runs in progress.
  Ends before;
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(parallel_, true)) ParallelSessions::Instance().Add(weak_from_this());
    if (runs_.size() == 1) {
      Join(*runs_.front(), stream);
      return true;
    }
    for (const auto& run : runs_) {
      Close(*run, stream);
      run->unknown_work = true;
      before.insert(before.end(), run->after.begin(), run->after.end());
    }
  }
  const MayBlock scope;
  // Their failures are left to the runs they concern: see Settle.
  for (const auto& event : before) device_.device().backend().EventSynchronize(event->handle());
  return false;
}

bool SessionRuns::EnterCurrent(Stream& stream) {
  if (const auto run = Current()) {
    return &run->owner->device_.device() != &stream.device() || run->owner->Enter(stream);
  }
  for (const auto& session : ParallelSessions::Instance().All())
    if (session->Owns(stream)) return session->Enter(stream);
  return true;
}

bool SessionRuns::Owns(const Stream& stream) {
  std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& own) { return own.get() == &stream; });
}

// The run's work on the stream becomes one of its ends; false: there was none, or it is over and succeeded.
bool SessionRuns::Close(Run& run, Stream& stream) {
  const auto found = std::find(run.streams.begin(), run.streams.end(), &stream);
  if (found == run.streams.end()) return false;
  Backend& backend = device_.device().backend();
  std::shared_ptr<Event> end;
  if (!backend.StreamQuery(stream.handle()) || backend.StreamStatus(stream.handle()) != nullptr) {
    end = std::make_shared<Event>(backend);
    run.ends.reserve(run.ends.size() + 1);
    backend.EventRecord(end->handle(), stream.handle());
    run.ends.push_back(end);
  }
  run.streams.erase(found);
  run.entered = nullptr;
  return end != nullptr;
}

void SessionRuns::Resume(Stream& stream) { device_.device().backend().StreamResume(stream.handle(), nullptr); }

SessionRuns::Unclosed SessionRuns::CloseAll(Run& run) {
  Unclosed unclosed;
  for (Stream* stream : std::vector<Stream*>(run.streams)) {
    try {
      if (Close(run, *stream)) Resume(*stream);
    } catch (...) {
      unclosed.why = std::current_exception();
    }
  }
  unclosed.streams = std::exchange(run.streams, {});
  return unclosed;
}

Status SessionRuns::Await(const std::vector<Stream*>& streams) {
  Backend& backend = device_.device().backend();
  const MayBlock scope;
  Status failed;
  for (Stream* stream : streams) {
    const Status status = backend.StreamSynchronize(stream->handle());
    if (status != nullptr) Resume(*stream);
    if (failed == nullptr) failed = status;
  }
  return failed;
}

void SessionRuns::Settle() {
  const auto run = Current();
  if (run == nullptr || run->owner != this) return;
  Ends ends;
  Unclosed unclosed;
  {
    std::lock_guard lock(mutex_);
    unclosed = CloseAll(*run);
    ends = std::exchange(run->ends, {});
    if (run->unknown_work) ends.insert(ends.end(), run->after.begin(), run->after.end());
  }
  Status failed = Await(unclosed.streams);
  const MayBlock scope;
  for (const auto& end : ends) {
    const Status status = device_.device().backend().EventSynchronize(end->handle());
    if (failed == nullptr) failed = status;
  }
  ThrowIfFailed(failed);
}

void SessionRuns::SettleCurrent(Device& device) {
  if (const auto run = Current()) {
    if (&run->owner->device_.device() == &device) run->owner->Settle();
    return;
  }
  for (const auto& session : ParallelSessions::Instance().All())
    if (&session->device_.device() == &device) session->AwaitRuns();
}

void SessionRuns::AwaitRuns() {
  Backend& backend = device_.device().backend();
  Ends ends;
  {
    std::lock_guard lock(mutex_);
    for (const auto& run : runs_) {
      ends.insert(ends.end(), run->ends.begin(), run->ends.end());
      for (Stream* stream : run->streams) {
        if (backend.StreamQuery(stream->handle())) continue;
        auto reached = std::make_shared<Event>(backend);
        backend.EventRecord(reached->handle(), stream->handle());
        ends.push_back(std::move(reached));
      }
    }
  }
  const MayBlock scope;
  for (const auto& end : ends) backend.EventSynchronize(end->handle());
}

void SessionRuns::End() {
  const auto run = Current();
  if (run == nullptr || run->owner != this) return;
  Unclosed unclosed;
  {
    std::lock_guard lock(mutex_);
    runs_.erase(std::find(runs_.begin(), runs_.end(), run));
    // This run was ordered behind the work that this thread left before, and has reported its failures.
    std::erase_if(unawaited_, [this](const Unawaited& work) {
      return work.told == ThisThreadNumber() ||
             (work.told == 0 && device_.device().backend().EventQuery(work.done->handle()));
    });
    unclosed = CloseAll(*run);
  }
  current.pop_back();
  // Work that cannot be ordered by an event must be over when this returns.
  std::exception_ptr failed = unclosed.why;
  if (const Status status = Await(unclosed.streams)) failed = std::make_exception_ptr(FailedBefore(status));
  for (const auto& end : run->ends) {
    try {
      Leave(*run, end);
    } catch (...) {
      if (failed == nullptr) failed = std::current_exception();
    }
  }
  if (failed != nullptr) std::rethrow_exception(failed);
}

void SessionRuns::Leave(const Run& run, const std::shared_ptr<const Event>& end) {
  Backend& backend = device_.device().backend();
  try {
    if (run.caller != nullptr) backend.StreamWaitEvent(run.caller->handle(), end->handle());
  } catch (...) {
    const MayBlock scope;
    ThrowIfFailed(backend.EventSynchronize(end->handle()));
    throw;
  }
  if (run.caller == nullptr) Outstanding::Add(device_.device(), end);
  std::lock_guard lock(mutex_);
  unawaited_.push_back({run.caller == nullptr ? 0 : ThisThreadNumber(), end});
}

void SessionRuns::Wait() {
  const MayBlock scope;
  const uint64_t me = ThisThreadNumber();
  Backend& backend = device_.device().backend();
  std::vector<Unawaited> unawaited;
  {
    std::lock_guard lock(mutex_);
    unawaited = unawaited_;
  }
  Status failed;
  for (const Unawaited& work : unawaited) {
    const Status status = backend.EventSynchronize(work.done->handle());
    if (failed == nullptr && work.told == me) failed = status;
  }
  {
    std::lock_guard lock(mutex_);
    std::erase_if(unawaited_, [&](const Unawaited& work) {
      const bool well = work.told == 0 || backend.EventStatus(work.done->handle()) == nullptr;
      return work.told == me || (well && backend.EventQuery(work.done->handle()));
    });
  }
  device_.WaitForCaller();
  ThrowIfFailed(failed);
}

void SessionRuns::ReleaseAfterRuns(std::function<void()> release) {
  std::vector<BackendStream*> streams;
  {
    std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) streams.push_back(stream->handle());
  }
  RetireAfter(device_.device().backend(), streams, std::move(release));
}

}  // namespace npu::provider
