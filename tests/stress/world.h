// What the threads of one round share: the devices, streams that several threads launch on, a board where they leave
// events and memory for each other, and what is known about differences.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "ep/runtime/device.h"
#include "tests/stress/pattern.h"

namespace npu::stress {

class World;

// One allocation, given back when the last who uses it lets it go, on whatever thread that is.
class Memory {
 public:
  Memory(World& world, Device& device, size_t count, Stream& stream);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t* data() const { return data_; }
  std::vector<uint64_t> Contents() const;  // the caller has waited for who writes
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(uint64_t); }
  Device& device() const { return device_; }

 private:
  World& world_;
  Device& device_;
  const size_t count_;
  uint64_t* data_;
};

// The text of an error that must come; empty: none.
using Fault = std::string;

// An event, and how the work before its record ends.
struct Mark {
  std::shared_ptr<Event> event;
  Fault failure;
};

// What a thread leaves for others: they read the memory behind the mark, and nobody writes it any more.
struct Parcel {
  Mark mark;
  std::shared_ptr<Memory> memory;
  Pattern value;
  bool known = false;  // whether the memory holds `value` once the mark has passed well
};

// Things that go on for a while, which excuse what others see meanwhile.
class Interval {
 public:
  void Begin() { begun_.fetch_add(1); }
  void End() { ended_.fetch_add(1); }
  uint64_t Now() const { return ended_.load(); }
  // Whether one was going on at any time since Now() gave `since`.
  bool Since(uint64_t since) const { return begun_.load() > since; }

 private:
  std::atomic<uint64_t> begun_{0}, ended_{0};
};

// A stream that all threads launch on.
struct SharedStream {
  Stream* stream = nullptr;
  std::unique_ptr<Stream> own;  // unless it is a device's default stream
  std::mutex mutex;
  std::unordered_set<Fault> faults;  // that anybody brought onto it

  void Expect(const Fault& fault) {
    std::lock_guard lock(mutex);
    faults.insert(fault);
  }
  bool Expected(const Fault& fault) {
    std::lock_guard lock(mutex);
    return faults.count(fault) != 0;
  }
};

class World {
 public:
  static constexpr size_t kMemoryLimit = size_t{512} << 20;
  static constexpr size_t kDevices = 2, kShared = 2 * kDevices, kParcels = 24;

  explicit World(uint64_t seed);
  ~World();

  uint64_t seed() const { return seed_; }
  Backend& backend() { return *backend_; }
  Device& device(size_t index) { return *devices_[index]; }
  SharedStream& shared(size_t index) { return shared_[index]; }

  // Texts that no other task fails with.
  uint64_t NewFaultNumber() { return ++faults_; }
  static Fault FaultText(uint64_t number, int thread);
  // Whether a task was ever made to fail with this text, on whichever stream.
  bool Issued(const std::string& message) const;

  void Put(size_t slot, Parcel parcel);
  Parcel Get(size_t slot);

  void Differ(const std::string& what);
  bool differs() const { return differs_.load(); }
  std::string differences() const;

  // Threads are gone: lets go of all that is left, and checks that everything came back.
  void TakeDown();

  // Captures that a wait for a device disturbs, and allocations that leave no room for others.
  std::array<Interval, kDevices> global_captures, greedy;

 private:
  void CheckAllGiven(Device& device);

  const uint64_t seed_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::array<SharedStream, kShared> shared_;
  std::array<std::mutex, kParcels> parcel_mutexes_;
  std::array<Parcel, kParcels> parcels_;
  std::atomic<uint64_t> faults_{0};
  std::atomic<bool> differs_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> differences_;
};

}  // namespace npu::stress
