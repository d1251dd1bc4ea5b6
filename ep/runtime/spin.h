// Spins instead of making a system call when a wait is expected to be short: a futex wake costs several microseconds,
// more than most of the waits of this runtime.
#pragma once

#include <chrono>

#include "ep/runtime/machine.h"

namespace npu {

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#endif
}

// On one core a spinning thread only delays the thread it waits for.
inline bool SpinningHelps() {
  static const bool helps = UsableCores() > 1;
  return helps;
}

// Spins until `ready()` or `limit` has passed; returns the last `ready()`.
template <class Ready>
bool SpinUntil(Ready&& ready, std::chrono::nanoseconds limit) {
  if (ready()) return true;
  if (!SpinningHelps()) return false;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 8; ++i) {
      CpuRelax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace npu
