#include "ep/runtime/host/host_backend.h"

#include <cstring>
#include <utility>

#include "ep/runtime/backend_registry.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/host/guarded_backend.h"
#include "ep/runtime/host/host_event.h"
#include "ep/runtime/host/host_stream.h"
#include "ep/runtime/isa.h"
#include "ep/runtime/machine.h"
#include "ep/runtime/thread_pool.h"

namespace npu {
namespace {

// One core reaches about half of the memory bandwidth; below this size a fork costs more than it gains.
constexpr int64_t kCopyGrain = 256 << 10;

HostStream* Host(BackendStream* stream) { return static_cast<HostStream*>(stream); }
HostEvent* Host(BackendEvent* event) { return static_cast<HostEvent*>(event); }

[[maybe_unused]] const bool registered_host = RegisterBackend({
    .name = "host",
    .kernels = "host",
    .make = [] { return MakeHostBackend(HostOptionsFromEnvironment(Concat("Host NPU (", NameOf(ActiveIsa()), ")"))); },
});

}  // namespace

HostBackend::HostBackend(const HostOptions& options, bool whole_pages)
    : options_(options), memory_(options.device_count, options.memory_limit, UsableMemory(), whole_pages) {}

DeviceProperties HostBackend::Properties(int) const {
  return {options_.device_name, options_.memory_limit, NumThreads(), NameOf(ActiveIsa())};
}

BackendStream* HostBackend::CreateStream(int device, int) {
  return new HostStream(Concat("npu", device, "-stream"), device);
}

void HostBackend::DestroyStream(BackendStream* stream) { delete Host(stream); }

void HostBackend::Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) {
  Host(stream)->Launch(op, std::move(task), held_bytes);
}

void HostBackend::LaunchHost(BackendStream* stream, const char* op, Task task) {
  Host(stream)->Launch(op, std::move(task));
}

void HostBackend::LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) {
  Host(stream)->LaunchAlways(op, std::move(task));
}

void HostBackend::Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) {
  LaunchHost(stream, "copy", Task([=, this] { CopyInTask(dst, src, bytes, kind); }));
}

void HostBackend::CopyNow(int, void* dst, const void* src, size_t bytes, CopyKind kind) {
  CopyInTask(dst, src, bytes, kind);
}

void HostBackend::Memset(BackendStream* stream, void* dst, int value, size_t bytes) {
  LaunchHost(stream, "memset", Task([=, this] { FillInTask(dst, value, bytes); }));
}

bool HostBackend::StreamQuery(BackendStream* stream) { return Host(stream)->Idle(); }
Status HostBackend::StreamSynchronize(BackendStream* stream) { return Host(stream)->Synchronize(); }
Status HostBackend::StreamStatus(BackendStream* stream) { return Host(stream)->status(); }
void HostBackend::StreamResume(BackendStream* stream, Status failure) { Host(stream)->Resume(std::move(failure)); }

BackendEvent* HostBackend::CreateEvent(bool) { return new HostEvent; }
void HostBackend::DestroyEvent(BackendEvent* event) { delete Host(event); }

void HostBackend::EventRecord(BackendEvent* event, BackendStream* stream) {
  Host(event)->set_marker(Host(stream)->Mark());
}

void HostBackend::StreamWaitEvent(BackendStream* stream, BackendEvent* event) {
  if (auto marker = Host(event)->marker()) Host(stream)->WaitFor(std::move(marker));
}

bool HostBackend::EventQuery(BackendEvent* event) {
  const auto marker = Host(event)->marker();
  return marker == nullptr || marker->passed();
}

Status HostBackend::EventSynchronize(BackendEvent* event) {
  const auto marker = Host(event)->marker();
  if (marker == nullptr) return nullptr;
  marker->Wait();
  return marker->status();
}

Status HostBackend::EventStatus(BackendEvent* event) {
  const auto marker = Host(event)->marker();
  return marker != nullptr && marker->passed() ? marker->status() : nullptr;
}

int64_t HostBackend::EventTimestampNs(BackendEvent* event) {
  const auto marker = Host(event)->marker();
  return marker != nullptr && marker->passed() ? marker->timestamp_ns() : -1;
}

void HostBackend::CopyInTask(void* dst, const void* src, size_t bytes, CopyKind) {
  ParallelFor(static_cast<int64_t>(bytes), kCopyGrain, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin,
                static_cast<size_t>(end - begin));
  });
}

void HostBackend::FillInTask(void* dst, int value, size_t bytes) {
  ParallelFor(static_cast<int64_t>(bytes), kCopyGrain, [=](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(dst) + begin, value, static_cast<size_t>(end - begin));
  });
}

void HostBackend::MakeBlocking(BackendStream* stream) { Host(stream)->MakeBlocking(); }

void HostBackend::AbortStream(BackendStream* stream, const std::string& reason) { Host(stream)->Abort(reason); }

HostOptions HostOptionsFromEnvironment(const std::string& default_name) {
  HostOptions options;
  options.device_count = DeviceCountFromEnvironment();
  // A quarter is left to the host program, which shares this memory.
  const size_t share = UsableMemory() / 4 * 3 / static_cast<size_t>(options.device_count);
  options.memory_limit = MemoryLimitFromEnvironment().value_or(share);
  options.device_name = DeviceNameFromEnvironment().value_or(default_name);
  return options;
}

std::unique_ptr<Backend> MakeHostBackend(const HostOptions& options) {
  if (GuardMemoryFromEnvironment()) return std::make_unique<GuardedBackend>(options);
  return std::make_unique<HostBackend>(options);
}

}  // namespace npu
