// The entry point of the stress program: threads that mix all runtime calls and know each expected value and error. See
// worker.h for how.
#pragma once

#include <cstdint>
#include <cstdio>

namespace npu::stress {

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  int threads = 8;
  double round_seconds = 5;  // then everything is destroyed, checked, and created again with the next seed
};

// Runs rounds until the time is over. Prints a summary to `out`; false if anything differed from the expectation, which
// is then printed with the round's seed. Ends the process with 1 if a thread makes no progress for 30 s.
bool RunStress(const Options& options, std::FILE* out);

}  // namespace npu::stress
