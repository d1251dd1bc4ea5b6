// The stress program's one entry: threads that mix everything the runtime offers, and know of each value and each error
// what must come. See worker.h for how they know.
#pragma once

#include <cstdint>
#include <cstdio>

namespace npu::stress {

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  int threads = 8;
  double round_seconds = 5;  // then all is taken down, looked at, and built anew with the next seed
};

// Runs rounds until the time is over. Prints what was done to `out`; false when anything differed from what must come,
// which is then printed with the round's seed. Ends the process with 1 when a thread makes no progress for 30 s.
bool RunStress(const Options& options, std::FILE* out);

}  // namespace npu::stress
