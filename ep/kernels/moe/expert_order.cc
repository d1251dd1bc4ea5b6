#include "ep/kernels/moe/expert_order.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

// Up to so many experts take one pass; any int32 takes three.
constexpr int kDigitBits = 11;
constexpr uint32_t kDigits = 1u << kDigitBits;

int64_t ChunksOf(int64_t rows) { return ThreadsForElements(rows); }

// One pass: the rows of `from`, or all of them as they come, sorted by one digit of their keys.
void SortByDigit(const uint32_t* keys, const int32_t* from, int64_t rows, int shift, uint32_t digits, int32_t* to,
                 uint32_t* places) {
  const int64_t chunks = ChunksOf(rows);
  const auto row_at = [from](int64_t i) { return from == nullptr ? static_cast<int32_t>(i) : from[i]; };
  const auto digit_of = [keys, shift](int32_t row) { return (keys[row] >> shift) & (kDigits - 1); };
  ForRowsOfThreads(rows, chunks, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint32_t* count = places + chunk * kDigits;
    std::fill_n(count, digits, 0u);
    for (int64_t i = begin; i < end; ++i) ++count[digit_of(row_at(i))];
  });
  uint32_t next = 0;
  for (uint32_t digit = 0; digit < digits; ++digit)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) next += std::exchange(places[chunk * kDigits + digit], next);
  ForRowsOfThreads(rows, chunks, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint32_t* place = places + chunk * kDigits;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t row = row_at(i);
      to[place[digit_of(row)]++] = row;
    }
  });
}

}  // namespace

size_t OrderScratchBytes(int64_t rows) {
  return static_cast<size_t>(rows) * sizeof(int32_t) + static_cast<size_t>(ChunksOf(rows)) * kDigits * sizeof(uint32_t);
}

void OrderRows(const uint32_t* keys, int64_t rows, uint32_t largest, int32_t* order, void* scratch) {
  auto* places = static_cast<uint32_t*>(scratch);
  auto* other = reinterpret_cast<int32_t*>(places + ChunksOf(rows) * kDigits);
  int passes = 1;
  for (uint32_t rest = largest >> kDigitBits; rest != 0; rest >>= kDigitBits) ++passes;
  const int32_t* from = nullptr;
  int32_t* to = passes % 2 == 1 ? order : other;  // the last pass writes to `order`
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * kDigitBits;
    SortByDigit(keys, from, rows, shift, std::min(kDigits - 1, largest >> shift) + 1, to, places);
    from = to;
    to = to == order ? other : order;
  }
}

uint32_t KeysOfExperts(const int32_t* experts, int64_t rows, uint32_t* keys) {
  if (rows == 0) return 0;
  // Read once: sorting relies on the greatest key.
  for (int64_t i = 0; i < rows; ++i) keys[i] = static_cast<uint32_t>(ReadOnce(experts + i));
  int32_t least = std::numeric_limits<int32_t>::max(), greatest = std::numeric_limits<int32_t>::min();
#pragma omp simd reduction(min : least) reduction(max : greatest)
  for (int64_t i = 0; i < rows; ++i) {
    const auto expert = static_cast<int32_t>(keys[i]);
    least = expert < least ? expert : least;
    greatest = expert > greatest ? expert : greatest;
  }
  const auto first = static_cast<uint32_t>(least);
  for (int64_t i = 0; i < rows; ++i) keys[i] -= first;
  return static_cast<uint32_t>(greatest) - first;
}

}  // namespace npu
