// State shared by the threads of one round: the devices, streams that several threads launch on, slots for passing
// events and memory between threads, and the differences found.
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

// One allocation, freed by its last user on any thread.
class Memory {
 public:
  Memory(World& world, Device& device, size_t count, Stream& stream);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t* data() const { return data_; }
  std::vector<uint64_t> Contents() const;  // the caller has waited for the writers
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(uint64_t); }
  Device& device() const { return device_; }

 private:
  World& world_;
  Device& device_;
  const size_t count_;
  uint64_t* data_;
};

// The message of an expected error; empty: none.
using Fault = std::string;

// An event, and the failure of the work before its record, if any.
struct Mark {
  std::shared_ptr<Event> event;
  Fault failure;
};

// Passed from one thread to others: they read the memory after the mark, and no thread writes it.
struct Parcel {
  Mark mark;
  std::shared_ptr<Memory> memory;
  Pattern value;
  bool known = false;  // whether the memory holds `value` once the mark has passed without failure
};

// Periods during which other threads may see certain errors.
class Interval {
 public:
  void Begin() { begun_.fetch_add(1); }
  void End() { ended_.fetch_add(1); }
  uint64_t Now() const { return ended_.load(); }
  // Whether a period overlapped the time since Now() returned `since`.
  bool Since(uint64_t since) const { return begun_.load() > since; }

 private:
  std::atomic<uint64_t> begun_{0}, ended_{0};
};

// A stream that all threads launch on.
struct SharedStream {
  Stream* stream = nullptr;
  std::unique_ptr<Stream> own;  // null for a device's default stream
  std::mutex mutex;
  std::unordered_set<Fault> faults;  // caused on it by any thread

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

  // Error messages that are unique to one task.
  uint64_t NewFaultNumber() { return ++faults_; }
  static Fault FaultText(uint64_t number, int thread);
  // Whether any task was made to fail with this message, on any stream.
  bool Issued(const std::string& message) const;

  void Put(size_t slot, Parcel parcel);
  Parcel Get(size_t slot);

  void Differ(const std::string& what);
  bool differs() const { return differs_.load(); }
  std::string differences() const;

  // After the threads have ended: releases everything, and checks that nothing leaks.
  void TakeDown();

  // Captures that refuse a wait for the device, and allocations that may cause out of memory elsewhere.
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
