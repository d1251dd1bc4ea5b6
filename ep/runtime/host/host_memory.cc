#include "ep/runtime/host/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "ep/runtime/machine.h"
#include "ep/runtime/sanitizers.h"

namespace npu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kHeapAlignment = 512;  // of the blocks that the allocator cuts from pages
// From this size on, a query of the available memory costs little compared with touching the memory.
constexpr size_t kWorthAsking = size_t{64} << 20;

bool Take(std::atomic<size_t>& used, size_t bytes, size_t capacity) {
  size_t now = used.load(std::memory_order_relaxed);
  do {
    if (bytes > capacity || now > capacity - bytes) return false;
  } while (!used.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  return true;
}

void* Map(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - page) return nullptr;
  bytes = (bytes + page - 1) / page * page;
  if (bytes < kHugePage) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  }
  // Only an aligned mapping gets huge pages, so one more page is mapped and both ends are unmapped.
  if (bytes > SIZE_MAX - kHugePage) return nullptr;
  void* raw = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (begin + kHugePage - 1) & ~(kHugePage - 1);
  if (aligned != begin) munmap(raw, aligned - begin);
  if (const size_t rest = begin + kHugePage - aligned; rest != 0)
    munmap(reinterpret_cast<void*>(aligned + bytes), rest);
  void* p = reinterpret_cast<void*>(aligned);
  madvise(p, bytes, MADV_HUGEPAGE);  // advice: a kernel without huge pages may refuse it
  return p;
}

}  // namespace

HostMemory::HostMemory(int devices, size_t capacity, size_t machine, bool whole_pages)
    : capacity_(capacity),
      machine_(machine),
      from_heap_(kAddressSanitizer && !whole_pages),
      used_(static_cast<size_t>(devices)) {}

bool HostMemory::Charge(int device, size_t bytes) {
  // Linux overcommits memory and kills the process that touches too much; a device fails the allocation instead.
  if (bytes >= kWorthAsking && bytes > AvailableMemory()) return false;
  std::atomic<size_t>& used = used_[static_cast<size_t>(device)];
  if (!Take(used, bytes, capacity_)) return false;
  if (Take(total_, bytes, machine_)) return true;
  used.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void HostMemory::Discharge(int device, size_t bytes) {
  used_[static_cast<size_t>(device)].fetch_sub(bytes, std::memory_order_relaxed);
  total_.fetch_sub(bytes, std::memory_order_relaxed);
}

void* HostMemory::AllocDevice(int device, size_t bytes) {
  if (!Charge(device, bytes)) return nullptr;
  void* p = nullptr;
  if (!from_heap_) {
    p = Map(bytes);
  } else if (posix_memalign(&p, kHeapAlignment, bytes) != 0) {
    p = nullptr;
  }
  if (p == nullptr) Discharge(device, bytes);
  return p;
}

void HostMemory::FreeDevice(int device, void* ptr, size_t bytes) {
  from_heap_ ? std::free(ptr) : void(munmap(ptr, bytes));
  Discharge(device, bytes);
}

void* HostMemory::Reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

void HostMemory::Release(void* ptr, size_t bytes) { munmap(ptr, bytes); }

bool HostMemory::MapDevice(int device, void* ptr, size_t bytes) {
  if (!Charge(device, bytes)) return false;
  if (mprotect(ptr, bytes, PROT_READ | PROT_WRITE) == 0) return true;
  Discharge(device, bytes);
  return false;
}

void HostMemory::UnmapDevice(int device, void* ptr, size_t bytes) {
  // Mapped anew: this frees the pages, and a stray access faults.
  mmap(ptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  Discharge(device, bytes);
}

void* HostMemory::AllocPinned(size_t bytes) {
  constexpr size_t kPinnedAlignment = 64;
  if (bytes > SIZE_MAX - kPinnedAlignment) return nullptr;
  return std::aligned_alloc(kPinnedAlignment, (bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment);
}

void HostMemory::FreePinned(void* ptr) { std::free(ptr); }

}  // namespace npu
