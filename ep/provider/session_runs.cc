#include "ep/provider/session_runs.h"

#include <algorithm>
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

namespace npu::provider {
thread_local std::weak_ptr<SessionRuns::Run> SessionRuns::current;

namespace {

// If the backend can; otherwise each kernel's launches are waited for all the same (KernelAdaptor).
void MakeBlocking(Stream& stream) {
  auto* extensions = dynamic_cast<BackendExtensions*>(&stream.device().backend());
  if (extensions != nullptr) extensions->MakeBlocking(stream.handle());
}

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
  bool elsewhere = false;
  Stream& stream = CallerOf(compute_stream, caller, elsewhere);
  Graph::RefuseInCapture(stream,
                         "a run of a session: run it outside of torch.npu.graph, or capture it with the provider "
                         "option enable_npu_graph");
  auto run = std::make_shared<Run>(Run{.owner = this});
  Backend& backend = device_.device().backend();
  // This thread's work in other runs must not delay the caller's stream, which other threads may share.
  if (!elsewhere && Outstanding::Any()) run->after = Outstanding::Of(device_.device());
  const bool idle = backend.StreamQuery(stream.handle());
  if (!idle || backend.StreamSynchronize(stream.handle()) != nullptr) {
    auto reached = std::make_shared<Event>(backend);
    backend.EventRecord(reached->handle(), stream.handle());
    run->after.push_back(std::move(reached));
  }
  if (!elsewhere) stream.TellNews();
  if (elsewhere) run->caller = &stream;
  std::lock_guard lock(mutex_);
  runs_.push_back(std::move(run));
  current = runs_.back();
}

void SessionRuns::Join(Run& run, Stream& stream) {
  if (std::find(run.streams.begin(), run.streams.end(), &stream) != run.streams.end()) return;
  for (const auto& event : run.after) device_.device().backend().StreamWaitEvent(stream.handle(), event->handle());
  run.streams.push_back(&stream);
}

void SessionRuns::Enter(Stream& stream) {
  if (const auto run = current.lock(); run != nullptr && run->owner == this) {
    if (run->entered == &stream) return;
    std::lock_guard lock(mutex_);
    Join(*run, stream);
    run->entered = &stream;
    return;
  }
  // One of onnxruntime's own threads: its run is unknown, so the stream follows every caller.
  std::lock_guard lock(mutex_);
  for (const auto& run : runs_) Join(*run, stream);
}

void SessionRuns::EnterCurrent(Stream& stream) {
  const auto run = current.lock();
  if (run != nullptr && &run->owner->device_.device() == &stream.device()) run->owner->Enter(stream);
}

void SessionRuns::Settle() {
  const auto run = current.lock();
  if (run == nullptr || run->owner != this) return;
  std::vector<Stream*> streams;
  {
    std::lock_guard lock(mutex_);
    streams = run->streams;
  }
  Backend& backend = device_.device().backend();
  const MayBlock scope;
  Status failed;
  for (Stream* stream : streams) {
    const Status status = backend.StreamSynchronize(stream->handle());
    if (status != nullptr) backend.StreamResume(stream->handle(), nullptr);
    if (failed == nullptr) failed = status;
  }
  ThrowIfFailed(failed);
}

void SessionRuns::SettleCurrent(Device& device) {
  const auto run = current.lock();
  if (run != nullptr && &run->owner->device_.device() == &device) run->owner->Settle();
}

void SessionRuns::End() {
  const auto run = current.lock();
  if (run == nullptr || run->owner != this) return;
  {
    std::lock_guard lock(mutex_);
    runs_.erase(std::find(runs_.begin(), runs_.end(), run));
    // This run was ordered behind the work that this thread left before, and has reported its failures.
    std::erase_if(unawaited_, [this](const Unawaited& work) {
      return work.told == ThisThreadNumber() ||
             (work.told == 0 && device_.device().backend().EventQuery(work.done->handle()));
    });
  }
  current.reset();
  std::exception_ptr failed;
  for (Stream* stream : run->streams) {
    try {
      Leave(*run, *stream);
    } catch (...) {
      if (failed == nullptr) failed = std::current_exception();
    }
  }
  if (failed != nullptr) std::rethrow_exception(failed);
}

void SessionRuns::Leave(const Run& run, Stream& stream) {
  Backend& backend = device_.device().backend();
  const bool idle = backend.StreamQuery(stream.handle());
  if (idle && backend.StreamSynchronize(stream.handle()) == nullptr) return;
  std::shared_ptr<Event> done;
  try {
    done = std::make_shared<Event>(backend);
    backend.EventRecord(done->handle(), stream.handle());
    if (run.caller != nullptr) backend.StreamWaitEvent(run.caller->handle(), done->handle());
  } catch (...) {
    // Work that can no longer be ordered by an event must be over when this returns.
    const MayBlock scope;
    const Status status = backend.StreamSynchronize(stream.handle());
    backend.StreamResume(stream.handle(), nullptr);
    ThrowIfFailed(status);
    throw;
  }
  backend.StreamResume(stream.handle(), nullptr);  // errors do not carry over to the next run on this stream
  if (run.caller == nullptr) Outstanding::Add(device_.device(), done);
  std::lock_guard lock(mutex_);
  unawaited_.push_back({run.caller == nullptr ? 0 : ThisThreadNumber(), std::move(done)});
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
