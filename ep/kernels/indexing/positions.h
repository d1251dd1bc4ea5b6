// The positions of the elements of a tensor that differ from zero, in row-major order: blocks of elements are counted
// and then written by different threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/op_check.h"

namespace npu::positions {

inline constexpr int64_t kBlock = kCheapGrain;  // elements that are counted together

inline int64_t BlocksOf(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

template <class T>
bool Differs(T value) {
  return Upcast(value) != 0;
}

// How many elements of each block differ from zero.
template <class T>
void Count(const T* x, int64_t n, int64_t* counts) {
  ParallelFor(BlocksOf(n), 1, [=](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t end = std::min(n, (b + 1) * kBlock);
      int32_t count = 0;
#pragma omp simd reduction(+ : count)
      for (int64_t i = b * kBlock; i < end; ++i) count += Differs(x[i]) ? 1 : 0;
      counts[b] = count;
    }
  });
}

// Where a position's coordinates lie: coordinate d of position k at to[k * position + d * dimension].
struct Layout {
  int64_t* to;
  int64_t position, dimension;
};

// Writes those in [begin, end), of which there must be `count`, from position `k` on; of a shape of one axis or more.
template <class T>
void WriteBlock(const char* op, const Shape& shape, const T* x, int64_t begin, int64_t end, int64_t count, int64_t k,
                const Layout& layout) {
  constexpr int64_t kMost = 256;  // elements that are looked at together
  const int inner = shape.rank() - 1;
  const int64_t width = shape[inner];
  std::array<int64_t, Shape::kMaxRank> at{};
  for (int64_t d = inner, rest = begin; d >= 0; rest /= shape[static_cast<int>(d)], --d)
    at[static_cast<size_t>(d)] = rest % shape[static_cast<int>(d)];
  int64_t& column = at[static_cast<size_t>(inner)];
  while (begin < end) {
    const int64_t some = std::min({kMost, end - begin, width - column});
    // Each is written, and kept if it counts: a branch would often be predicted wrongly.
    int64_t columns[kMost], found = 0;
    for (int64_t i = 0; i < some; ++i) {
      columns[found] = column + i;
      found += Differs(x[begin + i]) ? 1 : 0;
    }
    NPU_OP_CHECK(op, found <= count, "expected an input that does not change while it is read");
    count -= found;
    for (int64_t i = 0; i < found; ++i, ++k) {
      int64_t* const to = layout.to + k * layout.position;
      for (int d = 0; d < inner; ++d) to[d * layout.dimension] = at[static_cast<size_t>(d)];
      to[inner * layout.dimension] = columns[i];
    }
    begin += some;
    column += some;
    if (column < width) continue;
    column = 0;
    for (int d = inner - 1; d >= 0 && ++at[static_cast<size_t>(d)] == shape[d]; --d) at[static_cast<size_t>(d)] = 0;
  }
  NPU_OP_CHECK(op, count == 0, "expected an input that does not change while it is read");
}

// All of them: before[b] is how many positions precede those of block b.
template <class T>
void Write(const char* op, const Shape& shape, const T* x, const int64_t* before, const Layout& layout) {
  const int64_t n = shape.Elements();
  ParallelFor(BlocksOf(n), 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b)
      WriteBlock(op, shape, x, b * kBlock, std::min(n, (b + 1) * kBlock), before[b + 1] - before[b], before[b], layout);
  });
}

}  // namespace npu::positions
