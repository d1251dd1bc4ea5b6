#include "ep/runtime/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace npu {
namespace {

// An entry of /proc/self/pagemap.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kOfFileOrShared = uint64_t{1} << 61;  // not set once a private mapping has its own copy

bool IsReleasable(uint64_t entry) { return (entry & kPresent) != 0 && (entry & kOfFileOrShared) != 0; }

}  // namespace

void ReleaseFilePages(const void* address, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t first = (begin + page - 1) / page, last = (begin + bytes) / page;
  if (first >= last) return;
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // without it, file pages are indistinguishable from private ones
  std::array<uint64_t, 4096> entries;
  for (uintptr_t at = first; at < last;) {
    const size_t wanted = std::min(entries.size(), last - at);
    const ssize_t got =
        pread(file, entries.data(), wanted * sizeof(uint64_t), static_cast<off_t>(at * sizeof(uint64_t)));
    if (got < static_cast<ssize_t>(sizeof(uint64_t))) break;
    const auto end = entries.begin() + got / static_cast<ssize_t>(sizeof(uint64_t));
    for (auto run = entries.begin(); run != end;) {
      const auto from = std::find_if(run, end, IsReleasable);
      run = std::find_if_not(from, end, IsReleasable);
      if (from == run) break;
      const auto skipped = static_cast<uintptr_t>(from - entries.begin()), pages = static_cast<uintptr_t>(run - from);
      madvise(reinterpret_cast<void*>((at + skipped) * page), pages * page, MADV_DONTNEED);
    }
    at += static_cast<uintptr_t>(end - entries.begin());
  }
  close(file);
}

}  // namespace npu
