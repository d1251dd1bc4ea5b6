#include "ep/runtime/host/device_pages.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <iterator>
#include <vector>

namespace npu {
namespace {

// Guards the tables, which the fault handler reads. A signal handler must not wait for a mutex, so a thread that
// changes a table holds this flag for a moment and touches no device memory meanwhile.
std::atomic_flag tables_change = ATOMIC_FLAG_INIT;
std::vector<const std::map<uintptr_t, size_t>*>& Tables() {
  static auto& tables = *new std::vector<const std::map<uintptr_t, size_t>*>;
  return tables;
}

class TablesChange {
 public:
  TablesChange() {
    while (tables_change.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~TablesChange() { tables_change.clear(std::memory_order_release); }
  TablesChange(const TablesChange&) = delete;
  TablesChange& operator=(const TablesChange&) = delete;
};

struct sigaction before;  // the program's own handler

// The size of the allocation that contains the address; 0: not device memory. Gives up if the flag stays taken.
size_t AllocationAround(uintptr_t address) {
  constexpr int kTries = 1 << 20;
  for (int i = 0; tables_change.test_and_set(std::memory_order_acquire); ++i)
    if (i == kTries) return 0;
  size_t bytes = 0;
  for (const auto* table : Tables()) {
    const auto after = table->upper_bound(address);
    if (after == table->begin()) continue;
    const auto& [begin, size] = *std::prev(after);
    if (address - begin < size) bytes = size;
  }
  tables_change.clear(std::memory_order_release);
  return bytes;
}

void Say(uintptr_t address, size_t bytes) {
  std::array<char, 160> text;
  char* end = text.data();
  const auto put = [&](const char* part) { end = std::copy_n(part, strlen(part), end); };
  put("[device memory] host code touched device address 0x");
  end = std::to_chars(end, text.end(), address, 16).ptr;
  put(" of an allocation of ");
  end = std::to_chars(end, text.end(), bytes).ptr;
  put(" bytes\n");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), static_cast<size_t>(end - text.data()));
}

}  // namespace

void DevicePages::OnFault(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (const size_t bytes = AllocationAround(address)) Say(address, bytes);
  sigaction(signal, &before, nullptr);  // on return the access is repeated and faults into that handler
}

DevicePages::DevicePages() {
  const TablesChange change;
  Tables().push_back(&ranges_);
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) != 0 || current.sa_sigaction == &OnFault) return;
  before = current;  // the first instance, or the program has set its own handler since
  struct sigaction action = {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

DevicePages::~DevicePages() {
  const TablesChange change;
  std::erase(Tables(), &ranges_);
}

bool DevicePages::Add(void* ptr, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (mprotect(ptr, bytes, work_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) return false;
  const TablesChange change;
  ranges_[reinterpret_cast<uintptr_t>(ptr)] = bytes;
  return true;
}

void DevicePages::Remove(void* ptr, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(ptr), end = begin + bytes;
  std::lock_guard lock(mutex_);
  const TablesChange change;
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin()) --range;
  while (range != ranges_.end() && range->first < end) {
    const uintptr_t from = range->first, to = from + range->second;
    if (to <= begin) {
      ++range;
      continue;
    }
    range = ranges_.erase(range);
    if (from < begin) ranges_[from] = begin - from;
    if (to > end) ranges_[end] = to - end;
  }
}

void DevicePages::Open() {
  std::lock_guard lock(mutex_);
  if (work_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void DevicePages::Close() {
  std::lock_guard lock(mutex_);
  if (--work_ == 0) Protect(PROT_NONE);
}

void DevicePages::Protect(int protection) {
  for (const auto& [begin, bytes] : ranges_) mprotect(reinterpret_cast<void*>(begin), bytes, protection);
}

}  // namespace npu
