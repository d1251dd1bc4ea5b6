#include "ep/runtime/host/host_backend.h"

#include <cstring>
#include <utility>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/host/host_event.h"
#include "ep/runtime/host/host_memory.h"
#include "ep/runtime/host/host_stream.h"
#include "ep/runtime/isa.h"
#include "ep/runtime/machine.h"
#include "ep/runtime/thread_pool.h"

namespace npu {
namespace {

// One core moves about half of what the memory can deliver; below this a fork costs more than it gives.
constexpr int64_t kCopyGrain = 256 << 10;

void CopyBytes(void* dst, const void* src, size_t bytes) {
  ParallelFor(static_cast<int64_t>(bytes), kCopyGrain, [=](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin,
                static_cast<size_t>(end - begin));
  });
}

void FillBytes(void* dst, int value, size_t bytes) {
  ParallelFor(static_cast<int64_t>(bytes), kCopyGrain, [=](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(dst) + begin, value, static_cast<size_t>(end - begin));
  });
}

HostStream* Host(BackendStream* stream) { return static_cast<HostStream*>(stream); }
HostEvent* Host(BackendEvent* event) { return static_cast<HostEvent*>(event); }

class HostBackend final : public Backend, public BackendExtensions {
 public:
  explicit HostBackend(const HostOptions& options)
      : options_(options), memory_(options.device_count, options.memory_limit, UsableMemory()) {}

  const char* name() const override { return "host"; }
  int DeviceCount() const override { return options_.device_count; }
  DeviceProperties Properties(int) const override {
    return {options_.device_name, options_.memory_limit, NumThreads(), NameOf(ActiveIsa())};
  }
  bool KernelsReachHostMemory() const override { return true; }

  void* AllocDevice(int device, size_t bytes) override { return memory_.AllocDevice(device, bytes); }
  void FreeDevice(int device, void* ptr, size_t bytes) override { memory_.FreeDevice(device, ptr, bytes); }
  void* AllocPinned(size_t bytes) override { return HostMemory::AllocPinned(bytes); }
  void FreePinned(void* ptr) override { HostMemory::FreePinned(ptr); }

  void* ReserveAddresses(int, size_t bytes) override { return HostMemory::Reserve(bytes); }
  void ReleaseAddresses(void* ptr, size_t bytes) override { HostMemory::Release(ptr, bytes); }
  bool MapDevice(int device, void* ptr, size_t bytes) override { return memory_.MapDevice(device, ptr, bytes); }
  void UnmapDevice(int device, void* ptr, size_t bytes) override { memory_.UnmapDevice(device, ptr, bytes); }
  void CopyInTask(void* dst, const void* src, size_t bytes, CopyKind) override { CopyBytes(dst, src, bytes); }
  void FillInTask(void* dst, int value, size_t bytes) override { FillBytes(dst, value, bytes); }
  void MakeBlocking(BackendStream* stream) override { Host(stream)->MakeBlocking(); }
  void AbortStream(BackendStream* stream, const std::string& reason) override { Host(stream)->Abort(reason); }

  BackendStream* CreateStream(int device, int) override {
    return new HostStream(Concat("npu", device, "-stream"), device);
  }
  void DestroyStream(BackendStream* stream) override { delete Host(stream); }
  void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) override {
    Host(stream)->Launch(op, std::move(task), held_bytes);
  }
  void LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) override {
    Host(stream)->LaunchAlways(op, std::move(task));
  }
  void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind) override {
    Host(stream)->Launch("copy", Task([=] { CopyBytes(dst, src, bytes); }));
  }
  void CopyNow(int, void* dst, const void* src, size_t bytes, CopyKind) override { CopyBytes(dst, src, bytes); }
  void Memset(BackendStream* stream, void* dst, int value, size_t bytes) override {
    Host(stream)->Launch("memset", Task([=] { FillBytes(dst, value, bytes); }));
  }
  bool StreamQuery(BackendStream* stream) override { return Host(stream)->Idle(); }
  Status StreamSynchronize(BackendStream* stream) override { return Host(stream)->Synchronize(); }
  void StreamResume(BackendStream* stream, Status failure) override { Host(stream)->Resume(std::move(failure)); }

  BackendEvent* CreateEvent(bool) override { return new HostEvent; }
  void DestroyEvent(BackendEvent* event) override { delete Host(event); }
  void EventRecord(BackendEvent* event, BackendStream* stream) override {
    Host(event)->set_marker(Host(stream)->Mark());
  }
  void StreamWaitEvent(BackendStream* stream, BackendEvent* event) override {
    if (auto marker = Host(event)->marker()) Host(stream)->WaitFor(std::move(marker));
  }
  bool EventQuery(BackendEvent* event) override {
    const auto marker = Host(event)->marker();
    return marker == nullptr || marker->passed();
  }
  Status EventSynchronize(BackendEvent* event) override {
    const auto marker = Host(event)->marker();
    if (marker == nullptr) return nullptr;
    marker->Wait();
    return marker->status();
  }
  Status EventStatus(BackendEvent* event) override {
    const auto marker = Host(event)->marker();
    return marker != nullptr && marker->passed() ? marker->status() : nullptr;
  }
  int64_t EventTimestampNs(BackendEvent* event) override {
    const auto marker = Host(event)->marker();
    return marker != nullptr && marker->passed() ? marker->timestamp_ns() : -1;
  }

 private:
  const HostOptions options_;
  HostMemory memory_;
};

}  // namespace

HostOptions HostOptionsFromEnvironment() {
  HostOptions options;
  options.device_count = DeviceCountFromEnvironment();
  // A quarter is left to the host program, whose memory this is too.
  const size_t share = UsableMemory() / 4 * 3 / static_cast<size_t>(options.device_count);
  options.memory_limit = MemoryLimitFromEnvironment().value_or(share);
  options.device_name = DeviceNameFromEnvironment().value_or(Concat("Host NPU (", NameOf(ActiveIsa()), ")"));
  return options;
}

std::unique_ptr<Backend> MakeHostBackend(const HostOptions& options) { return std::make_unique<HostBackend>(options); }

}  // namespace npu
