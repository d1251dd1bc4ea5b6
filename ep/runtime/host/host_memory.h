// Memory of the host backend: device memory within the limits of each logical device, and pinned host memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace npu {

class HostMemory {
 public:
  // At most `capacity` bytes per device, and `machine` bytes for all of them together. AllocDevice returns whole pages;
  // but unless they must be (`whole_pages`), a build with AddressSanitizer takes them from its heap, whose bounds it
  // checks.
  HostMemory(int devices, size_t capacity, size_t machine, bool whole_pages);

  void* AllocDevice(int device, size_t bytes);  // null when the device or the machine has no more
  void FreeDevice(int device, void* ptr, size_t bytes);
  // Address space without memory until it is mapped, in granules of the page size.
  static void* Reserve(size_t bytes);
  static void Release(void* ptr, size_t bytes);
  bool MapDevice(int device, void* ptr, size_t bytes);
  void UnmapDevice(int device, void* ptr, size_t bytes);
  static void* AllocPinned(size_t bytes);
  static void FreePinned(void* ptr);

 private:
  bool Charge(int device, size_t bytes);
  void Discharge(int device, size_t bytes);
  const size_t capacity_, machine_;
  const bool from_heap_;
  std::vector<std::atomic<size_t>> used_;
  std::atomic<size_t> total_{0};
};

}  // namespace npu
