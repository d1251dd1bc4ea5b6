#include "tests/stress/world.h"

#include <charconv>
#include <utility>

#include "ep/runtime/error.h"
#include "ep/runtime/host/host_backend.h"
#include "ep/runtime/retirement.h"

namespace npu::stress {
namespace {

constexpr std::string_view kFaultText = "stress fault #";
constexpr size_t kMostDifferences = 20;

// The second device's allocator has other settings each round.
AllocatorSettings SettingsOf(uint64_t seed) {
  AllocatorSettings settings;
  switch (seed % 4) {
    case 1:
      settings.expandable_segments = true;
      break;
    case 2:
      settings.garbage_collection_threshold = 0.2;
      settings.max_split_size = size_t{4} << 20;
      break;
    case 3:
      settings.caching = false;
      break;
    default:
      break;
  }
  return settings;
}

}  // namespace

Memory::Memory(World& world, Device& device, size_t count, Stream& stream)
    : world_(world),
      device_(device),
      count_(count),
      data_(static_cast<uint64_t*>(device.allocator().Allocate(count * sizeof(uint64_t), stream))) {}

std::vector<uint64_t> Memory::Contents() const {
  std::vector<uint64_t> contents(count_);
  device_.backend().CopyNow(device_.index(), contents.data(), data_, bytes(), CopyKind::kDeviceToHost);
  return contents;
}

Memory::~Memory() {
  try {
    device_.allocator().Free(data_);
  } catch (const std::exception& e) {
    world_.Differ(Concat("a free threw: ", e.what()));
  }
}

World::World(uint64_t seed)
    : seed_(seed), backend_(MakeHostBackend({static_cast<int>(kDevices), kMemoryLimit, "stress"})) {
  for (size_t i = 0; i < kDevices; ++i)
    devices_.push_back(std::make_unique<Device>(*backend_, static_cast<int>(i), kMemoryLimit,
                                                i == 0 ? AllocatorSettings{} : SettingsOf(seed)));
  for (size_t i = 0; i < kShared; ++i) {
    Device& device = *devices_[i % kDevices];
    if (i >= kDevices) shared_[i].own = device.CreateStream();
    shared_[i].stream = i < kDevices ? &device.default_stream() : shared_[i].own.get();
  }
}

World::~World() = default;

Fault World::FaultText(uint64_t number, int thread) { return Concat(kFaultText, number, " of thread ", thread); }

bool World::Issued(const std::string& message) const {
  const size_t at = message.find(kFaultText);
  if (at == std::string::npos) return false;
  uint64_t number = 0;
  const char* begin = message.data() + at + kFaultText.size();
  std::from_chars(begin, message.data() + message.size(), number);
  return number >= 1 && number <= faults_.load();
}

void World::Put(size_t slot, Parcel parcel) {
  std::lock_guard lock(parcel_mutexes_[slot]);
  std::swap(parcels_[slot], parcel);  // the old one is destroyed with the argument, outside the lock
}

Parcel World::Get(size_t slot) {
  std::lock_guard lock(parcel_mutexes_[slot]);
  return parcels_[slot];
}

void World::Differ(const std::string& what) {
  std::lock_guard lock(mutex_);
  if (differences_.size() < kMostDifferences) differences_.push_back(what);
  differs_.store(true);
}

std::string World::differences() const {
  std::lock_guard lock(mutex_);
  std::string all;
  for (const std::string& what : differences_) all += what + "\n";
  return all;
}

void World::TakeDown() {
  for (Parcel& parcel : parcels_) parcel = {};
  for (const auto& device : devices_) {
    try {
      device->Synchronize();
    } catch (const Error& e) {
      if (!Issued(e.what())) Differ(Concat("at the end a device had the error: ", e.what()));
    }
  }
  for (SharedStream& shared : shared_) shared.own.reset();
  FinishRetirements(*backend_);
  for (const auto& device : devices_) CheckAllGiven(*device);
  devices_.clear();
}

void World::CheckAllGiven(Device& device) {
  CachingAllocator& allocator = device.allocator();
  allocator.EmptyCache();
  const AllocatorStats stats = allocator.Stats();
  const auto none = [&](const char* name, const PoolCounters& counters) {
    if (counters.all.current != 0 || counters.small_pool.current != 0 || counters.large_pool.current != 0)
      Differ(Concat("NPU ", device.index(), ": at the end ", name, " is ", counters.all.current, " (small ",
                    counters.small_pool.current, ", large ", counters.large_pool.current, "), expected 0"));
  };
  none("allocation", stats.allocation);
  none("allocated_bytes", stats.allocated_bytes);
  none("requested_bytes", stats.requested_bytes);
  none("active", stats.active);
  none("active_bytes", stats.active_bytes);
  none("inactive_split", stats.inactive_split);
  none("segment", stats.segment);
  none("reserved_bytes", stats.reserved_bytes);
  // The backend's memory: all of it can be allocated again.
  void* all = backend_->AllocDevice(device.index(), kMemoryLimit);
  if (all == nullptr) {
    Differ(Concat("NPU ", device.index(), ": at the end the backend does not have all of its memory"));
  } else {
    backend_->FreeDevice(device.index(), all, kMemoryLimit);
  }
}

}  // namespace npu::stress
