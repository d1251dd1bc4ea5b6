#include "ep/runtime/device.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/backend_registry.h"
#include "ep/runtime/blocking.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/fault_injection.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/log.h"
#include "ep/runtime/outstanding.h"
#include "ep/runtime/pinned_memory.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/stream_set.h"

namespace npu {
namespace {

struct LiveDevices {
  std::mutex mutex;
  std::vector<Device*> devices;
};
LiveDevices& Live() {
  static auto& live = *new LiveDevices;
  return live;
}

}  // namespace

Device::Device(Backend& backend, int index, size_t memory_limit, AllocatorSettings settings)
    : backend_(backend),
      index_(index),
      properties_(backend.Properties(index)),
      allocator_(std::make_unique<CachingAllocator>(backend, index, memory_limit, std::move(settings))),
      streams_(std::make_unique<StreamSet>()),
      default_stream_(std::make_unique<Stream>(*this, 0)) {
  std::lock_guard lock(Live().mutex);
  Live().devices.push_back(this);
}

Device::~Device() {
  default_stream_.reset();
  FinishRetirements(backend_);
  std::lock_guard lock(Live().mutex);
  std::erase(Live().devices, this);
}

void Device::ForgetStream(const Backend& backend, uint64_t id) {
  std::lock_guard lock(Live().mutex);
  for (Device* device : Live().devices)
    if (&device->backend_ == &backend) device->allocator_->ReleaseStream(id);
}

std::unique_ptr<Stream> Device::CreateStream(int priority, StreamOwner owner) {
  return std::make_unique<Stream>(*this, priority, owner);
}

Stream* Device::FindStream(const void* address) const {
  return streams_->FindIf([=](const Stream& s) { return &s == address; });
}

Stream* Device::FindStream(uint64_t id) const {
  return streams_->FindIf([=](const Stream& s) { return s.id() == id; });
}

void Device::Synchronize() {
  if (Recording::Any()) Recording::CheckWaitFor(*this, "synchronize");
  const MayBlock scope;
  // Reported in the order of the streams, whichever of them is done first.
  std::vector<Status> statuses;
  // Records all events before it waits for any, so that no stream is locked during a wait.
  struct Passed {
    size_t position;  // in statuses
    uint64_t stream;
    std::unique_ptr<Event> event;
  };
  std::vector<Passed> passed;
  const auto record = [&](uint64_t id, BackendStream* stream) {
    passed.push_back({statuses.size(), id, std::make_unique<Event>(backend_)});
    backend_.EventRecord(passed.back().event->handle(), stream);
    statuses.emplace_back();
  };
  streams_->Visit([&](Stream& stream) {
    if (!backend_.StreamQuery(stream.handle())) return record(stream.id(), stream.handle());
    statuses.push_back(stream.Told(backend_.StreamStatus(stream.handle())));
  });
  streams_->VisitLeaving([&](BackendStream* stream) {
    if (!backend_.StreamQuery(stream)) record(/*id: of no live stream*/ 0, stream);
  });
  for (const Passed& each : passed) {
    Status& status = statuses[each.position];
    status = backend_.EventSynchronize(each.event->handle());
    streams_->Visit([&](Stream& stream) {
      if (stream.id() == each.stream) status = stream.Told(std::move(status));
    });
  }
  Failures failures;
  for (Status& status : statuses) failures.Add(std::move(status));
  Outstanding::WaitForAll(*this, failures);
  Outstanding::Wait(*this, failures);
  failures.ThrowIfAny();
}

void Device::RecordBusyStreams(const void* address) {
  void* start = nullptr;
  streams_->Visit([&](Stream& stream) {
    if (backend_.StreamQuery(stream.handle()) || PinnedMemory::Instance().RecordUse(address, stream)) return;
    if (start == nullptr) start = allocator_->LiveBlockAround(address);
    if (start != nullptr) allocator_->RecordStream(start, stream);
  });
}

void Device::Stop() {
  stopped_.store(true);
  streams_->Visit([&](Stream& stream) {
    BackendExtensions::Of(backend_).AbortStream(stream.handle(), Concat("NPU ", index_, " was stopped (FORCE STOP)"));
  });
}

void Device::Restart() {
  std::vector<std::unique_ptr<Event>> passed;
  streams_->Visit([&](Stream& stream) {
    passed.push_back(std::make_unique<Event>(backend_));
    backend_.EventRecord(passed.back()->handle(), stream.handle());
    backend_.StreamResume(stream.handle(), nullptr);
  });
  for (const auto& event : passed) backend_.EventSynchronize(event->handle());
  stopped_.store(false);
}

Runtime& Runtime::Instance() {
  // Never destroyed: streams may still run when static destructors do, and a process must not wait for
  // them at exit.
  static std::atomic<Runtime*> instance{nullptr};
  static std::mutex mutex;
  if (Runtime* runtime = instance.load(std::memory_order_acquire)) return *runtime;
  std::lock_guard lock(mutex);
  if (instance.load(std::memory_order_relaxed) == nullptr) instance.store(new Runtime, std::memory_order_release);
  return *instance.load(std::memory_order_relaxed);
}

Runtime::Runtime() {
  // Variables that are read again later: an invalid value is reported here, before any work.
  LogLevelFromEnvironment();
  LaunchBlockingFromEnvironment();
  Features();
  const AllocatorSettings settings = AllocatorSettingsFromEnvironment();
  backend_ = BackendFromEnvironment().make();
  if (FaultInjectionFromEnvironment()) backend_ = std::make_unique<FaultInjection>(std::move(backend_));
  for (int i = 0; i < backend_->DeviceCount(); ++i)
    devices_.push_back(std::make_unique<Device>(*backend_, i, backend_->Properties(i).total_memory, settings));
  for (const auto& device : devices_) device->allocator().ReadEnvironmentAtFirstUse();
  const DeviceProperties& first = devices_.front()->properties();
  NPU_LOG(kInfo, devices_.size(), " device(s): ", first.name, ", ", first.total_memory >> 20, " MiB each, ",
          first.compute_units, " thread(s)");
}

Device& Runtime::device(int index) {
  NPU_CHECK(index >= 0 && index < device_count(), "invalid device ordinal ", index, ": expected 0 to ",
            device_count() - 1);
  return *devices_[static_cast<size_t>(index)];
}

}  // namespace npu
