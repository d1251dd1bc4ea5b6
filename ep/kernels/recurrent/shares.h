// Which threads run which sequences of a recurrent layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/runtime/thread_pool.h"

namespace npu::recurrent {

// f(direction, first, count) for shares of the sequences of each direction. Sequences and directions are independent:
// threads that have some of their own need not wait for each other at each step. Where there are too few, f gets all
// sequences outside of the pool, so that it can split each step. `gate_columns`: of all gates, of `hidden` values each.
template <class F>
void ForSequences(int64_t batch, int64_t directions, int64_t gate_columns, int64_t hidden, const F& f) {
  constexpr int64_t kRows = 8;             // sequences that are worth a thread
  constexpr int64_t kSplitWork = 4 << 20;  // products of a step that are worth splitting
  const int64_t threads = NumThreads(), wanted = (threads + directions - 1) / directions;
  const int64_t shares = std::clamp<int64_t>(batch / kRows, 1, wanted), tasks = shares * directions;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t share = task % shares, first = batch * share / shares, last = batch * (share + 1) / shares;
      f(task / shares, first, last - first);
    }
  };
  if (tasks >= threads || batch * gate_columns * hidden < kSplitWork) {
    ParallelFor(tasks, 1, run);
  } else {
    run(0, tasks);
  }
}

}  // namespace npu::recurrent
