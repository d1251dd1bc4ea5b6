// Rows of A as int8 times a panel of stored integers, on processors without VPDPBUSD: 4-bit integers by VPMADDUBSW,
// whose sums of 16 bits hold eight products of pairs, and 8-bit ones by VPMADDWD. Rounded as in rounded_dot_exact.cc.
#include <algorithm>
#include <utility>

#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/stored_row.h"

namespace npu::gemm {

#if defined(__AVX2__)

namespace {

constexpr int64_t kColumns = 16;  // of a panel, which are multiplied at a time
constexpr int kBlock = 4;         // rows of A at a time: 8 sums, two vectors of B, and what is multiplied
constexpr int64_t kChunk = 32;    // quads: four rows of K each, that stay in the L1 cache

// Of 4-bit integers: a pair is at most 15 * 128 * 2, so that eight of them and their sum fit into 16 bits.
constexpr int64_t kPairs = 8;

// The sums of kColumns columns, those of 4 bits in the order of InOrder.
using RowSums = int32_t[kColumns];

inline __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void Store(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline __m256i Broadcast(const void* four_bytes) {
  int32_t word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Rows of K of kColumns columns that one product takes, with as many elements of each row of A in four bytes.
template <int bits>
struct Step;

// Four rows: unsigned bytes, those of a column side by side, and signed bytes of A.
template <>
struct Step<4> {
  static constexpr int64_t kRows = 4;
  __m256i first, last;

  explicit Step(const uint8_t* stored) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    const __m256i half = _mm256_set1_epi8(15), bytes = Load(stored);
    const __m256i low = _mm256_and_si256(bytes, half);  // two rows of K each
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    first = _mm256_unpacklo_epi16(low, high);
    last = _mm256_unpackhi_epi16(low, high);
  }
  // Vector by vector: as a whole, the compiler copies it in halves, which a load of a vector waits for.
  explicit Step(const __m256i* unpacked) : first(unpacked[0]), last(unpacked[1]) {}
};

// Two rows: words, those of a column side by side, and words of A.
template <>
struct Step<8> {
  static constexpr int64_t kRows = 2;
  __m256i first, last;

  explicit Step(const uint8_t* stored) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    first = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored)));
    last = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored + kColumns)));
  }
  explicit Step(const __m256i* unpacked) : first(unpacked[0]), last(unpacked[1]) {}
};

template <int bits>
inline constexpr int64_t kStepsOfQuad = 4 / Step<bits>::kRows;
template <int bits>
inline constexpr int64_t kStepBytes = kQuadBytes<bits> / kStepsOfQuad<bits>;
// Of one row of A.
template <int bits>
inline constexpr int64_t kQuadBytesOfA = 4 * kStepsOfQuad<bits>;

// Columns 0 to 7 and 8 to 15 of two vectors of 32-bit values in the order of 4-bit integers' products, and back: that
// of a product has columns 0 to 3 and 8 to 11 in the first vector.
template <int bits>
inline void SwapOrder(__m256i (&columns)[2]) {
  if constexpr (bits == 4) {
    const __m256i first = columns[0], last = columns[1];
    columns[0] = _mm256_permute2x128_si256(first, last, 0x20);
    columns[1] = _mm256_permute2x128_si256(first, last, 0x31);
  }
}

// kColumns values in the order of products.
template <int bits>
struct ColumnValues {
  __m256 half[2];

  explicit ColumnValues(const float* in_order) {
    __m256i columns[2] = {Load(in_order), Load(in_order + 8)};
    SwapOrder<bits>(columns);
    half[0] = _mm256_castsi256_ps(columns[0]), half[1] = _mm256_castsi256_ps(columns[1]);
  }
  void StoreTo(float* to) const { _mm256_storeu_ps(to, half[0]), _mm256_storeu_ps(to + 8, half[1]); }
};

constexpr float kZeros[kPanelColumns] = {};
// What the sums of each column begin with.
inline const float* StartOf(const PanelScales& scales) { return scales.first ? scales.first : kZeros; }

// A was integers, whose sums are exact and whose every operation is rounded by itself, and B has offsets.
template <bool integers, bool offset>
struct Kind {
  static constexpr bool kIntegers = integers, kOffset = offset;
};

// Calls f with the Kind of these operands.
template <class F>
void WithKind(const RoundedRows& a, const PanelScales& scales, const F& f) {
  if (a.integers) return scales.offset ? f(Kind<true, true>()) : f(Kind<true, false>());
  scales.offset ? f(Kind<false, true>()) : f(Kind<false, false>());
}

// a + b * c.
template <class Kind>
inline __m256 MultiplyAdd(__m256 b, __m256 c, __m256 a) {
  return Kind::kIntegers ? _mm256_add_ps(a, _mm256_mul_ps(b, c)) : _mm256_fmadd_ps(b, c, a);
}

// What kColumns columns of a group have for all rows of A.
template <int bits, class Kind>
class GroupScale {
 public:
  GroupScale(const PanelScales& scales, int64_t g, int64_t column)
      : scale_(scales.scale + g * scales.stride + column),
        offset_(Kind::kOffset ? scales.offset + g * scales.stride + column : kZeros) {
    // Of floats the shift is part of the offset.
    if constexpr (!Kind::kIntegers)
      for (__m256& half : offset_.half) half = _mm256_sub_ps(half, _mm256_set1_ps(kShift));
  }

  // `columns`: the sums of a row of `ones` ones.
  void SubtractZeroPoint(int32_t zero_point, const RowSums& columns, int32_t ones) {
    const __m256i factor = _mm256_set1_epi32(zero_point), shift = _mm256_set1_epi32(kShift * ones);
    for (int half = 0; half < 2; ++half)
      of_zero_[half] = _mm256_mullo_epi32(factor, _mm256_sub_epi32(Load(columns + 8 * half), shift));
    ones_ = _mm256_set1_epi32(zero_point * ones);
  }

  // Adds the scaled sums of a row to `total`.
  void AddTo(const __m256i (&sums)[2], int32_t row_sum, float row_scale, __m256 (&total)[2]) const {
    const __m256i whole_row = _mm256_set1_epi32(row_sum);
    const __m256 scale_of_row = _mm256_set1_ps(row_scale);
    const __m256 row = _mm256_cvtepi32_ps(Kind::kIntegers ? _mm256_sub_epi32(whole_row, ones_) : whole_row);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i whole = sums[half];
      if constexpr (Kind::kIntegers) {
        if (kShift != 0) whole = _mm256_sub_epi32(whole, _mm256_slli_epi32(whole_row, 3));
        whole = _mm256_sub_epi32(whole, of_zero_[half]);
      }
      __m256 sum = _mm256_cvtepi32_ps(whole);
      if constexpr (Kind::kOffset || (kShift != 0 && !Kind::kIntegers))
        sum = MultiplyAdd<Kind>(offset_.half[half], row, sum);
      total[half] = MultiplyAdd<Kind>(sum, _mm256_mul_ps(scale_.half[half], scale_of_row), total[half]);
    }
  }

 private:
  static constexpr int32_t kShift = bits == 4 ? 8 : 0;  // added to the stored integers to make them unsigned
  ColumnValues<bits> scale_, offset_;
  __m256i of_zero_[2] = {}, ones_ = {};
};

// Rows of A from one row of a sliver on, in a chunk of a group, and what becomes of their products.
struct BlockRows {
  const int8_t* values;
  int64_t next;   // bytes from a quad of a row, as it is multiplied, to the one behind it
  RowSums* sums;  // of the chunks before
  const int32_t* row_sums;
  const float* row_scales;
  float* total;

  BlockRows From(int64_t row, int64_t bytes_of_quad) const {
    return {values + row * bytes_of_quad, next, sums + row, row_sums + row, row_scales + row,
            total + row * kPanelColumns};
  }
};

// The products of kRows rows of A with `quads` quads, whose steps `step_at` returns by index, and, unless these are the
// first, what sums holds.
template <int kRows, class StepAt>
inline void SumNibbles(const BlockRows& a, int64_t quads, const StepAt& step_at, bool first,
                       __m256i (&total)[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t q = 0;; first = false) {
    __m256i sum[kRows][2] = {};
    const auto add = [&](int64_t at) {
      const Step<4> b = step_at(at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256i of_row = Broadcast(a.values + at * a.next + 4 * r);
        sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(b.first, of_row));
        sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(b.last, of_row));
      }
    };
    if (q + kPairs <= quads) {
      // With one in turn the compiler copies every sum, with all at once it keeps sums in memory.
#pragma GCC unroll 2
      for (int64_t at = q; at < q + kPairs; ++at) add(at);
    } else {
      for (int64_t at = q; at < quads; ++at) add(at);
    }
    q += kPairs;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        total[r][half] = _mm256_madd_epi16(sum[r][half], ones);
        if (!first) total[r][half] = _mm256_add_epi32(total[r][half], Load(a.sums[r] + 8 * half));
        if (q < quads) Store(a.sums[r] + 8 * half, total[r][half]);
      }
    if (q >= quads) return;
  }
}

template <int kRows, class StepAt>
inline void SumWords(const BlockRows& a, int64_t quads, const StepAt& step_at, bool first, __m256i (&total)[kRows][2]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) total[r][half] = first ? _mm256_setzero_si256() : Load(a.sums[r] + 8 * half);
  const auto add = [&](int64_t q, int pair) {
    const Step<8> b = step_at(2 * q + pair);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i of_row = Broadcast(a.values + q * a.next + 8 * r + 4 * pair);
      total[r][0] = _mm256_add_epi32(total[r][0], _mm256_madd_epi16(b.first, of_row));
      total[r][1] = _mm256_add_epi32(total[r][1], _mm256_madd_epi16(b.last, of_row));
    }
  };
  if constexpr (kRows < kBlock) {
    for (int64_t q = 0; q < quads; ++q) add(q, 0), add(q, 1);
  } else {
    // The second steps of all quads after the first ones: of both in turn, the compiler adds the products to each other
    // first, which takes more registers than there are.
    for (int pair = 0; pair < 2; ++pair)
#pragma GCC unroll 2
      for (int64_t q = 0; q < quads; ++q) add(q, pair);
  }
}

// Multiplies kRows rows; `scale` is null but for a group's last chunk.
template <int bits, class Kind, int kRows, class StepAt>
__attribute__((noinline)) void MultiplyRows(const BlockRows& rows, int64_t quads, const StepAt& step_at, bool first,
                                            const GroupScale<bits, Kind>* scale) {
  const BlockRows a = rows;  // no store changes it
  __m256i total[kRows][2];
  if constexpr (bits == 4) {
    SumNibbles<kRows>(a, quads, step_at, first, total);
  } else {
    SumWords<kRows>(a, quads, step_at, first, total);
  }
  if (!scale) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) Store(a.sums[r], total[r][0]), Store(a.sums[r] + 8, total[r][1]);
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* const to = a.total + r * kPanelColumns;
    __m256 sums[2] = {_mm256_loadu_ps(to), _mm256_loadu_ps(to + 8)};
    scale->AddTo(total[r], a.row_sums[r], a.row_scales[r], sums);
    _mm256_storeu_ps(to, sums[0]), _mm256_storeu_ps(to + 8, sums[1]);
  }
}

// Up to kChunk quads of kColumns columns, for all slivers.
template <int bits, class Kind>
class Chunk {
 public:
  // Of more than kBlock rows: fewer unpack the panel while they are multiplied.
  Chunk(const uint8_t* stored, int64_t quads, bool unpack) : stored_(stored), quads_(quads), unpacks_(unpack) {
    if (!unpack) return;
    for (int64_t i = 0; i < quads * kStepsOfQuad<bits>; ++i) {
      const Step<bits> step(stored + i * kStepBytes<bits>);
      unpacked_[2 * i] = step.first;
      unpacked_[2 * i + 1] = step.last;
    }
  }

  // Multiplies rows [begin, end) of a sliver of `rows`; `a` has its first row.
  void Multiply(BlockRows a, int64_t rows, int64_t begin, int64_t end, bool first,
                const GroupScale<bits, Kind>* scale) const {
    alignas(32) int16_t words[bits == 8 ? kChunk * kVectorSlivers.rows * 4 : 1];
    if constexpr (bits == 8) {
      const int64_t count = quads_ * rows * 4;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) words[i] = a.values[i];
      a.values = reinterpret_cast<const int8_t*>(words);
    }
    const auto from_panel = [&](int64_t i) { return Step<bits>(stored_ + i * kStepBytes<bits>); };
    const auto from_memory = [&](int64_t i) { return Step<bits>(unpacked_ + 2 * i); };
    for (int64_t r = begin; r < end; r += kBlock) {
      const auto multiply = [&](const auto& step_at) {
        const BlockRows from = a.From(r, kQuadBytesOfA<bits>);
        const auto select = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
          const int64_t count = std::min<int64_t>(kBlock, end - r);
          ((count == kRows + 1 ? MultiplyRows<bits, Kind, kRows + 1>(from, quads_, step_at, first, scale) : void()),
           ...);
        };
        select(std::make_integer_sequence<int, kBlock>{});
      };
      unpacks_ ? multiply(from_memory) : multiply(from_panel);
    }
  }

 private:
  const uint8_t* stored_;
  int64_t quads_;
  bool unpacks_;
  __m256i unpacked_[kChunk * kStepsOfQuad<bits> * 2];
};

// The products of one row of A with the quads of a group.
template <int bits>
inline void SumOneRow(const int8_t* a, const uint8_t* stored, int64_t quads, __m256i (&sums)[2]) {
  __m256i first = _mm256_setzero_si256(), last = first;
  if constexpr (bits == 4) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t q = 0; q < quads;) {
      __m256i of_first = _mm256_setzero_si256(), of_last = of_first;
      for (const int64_t end = std::min(quads, q + kPairs); q < end; ++q) {
        const Step<4> b(stored + q * kStepBytes<4>);
        const __m256i of_row = Broadcast(a + 4 * q);
        of_first = _mm256_add_epi16(of_first, _mm256_maddubs_epi16(b.first, of_row));
        of_last = _mm256_add_epi16(of_last, _mm256_maddubs_epi16(b.last, of_row));
      }
      first = _mm256_add_epi32(first, _mm256_madd_epi16(of_first, ones));
      last = _mm256_add_epi32(last, _mm256_madd_epi16(of_last, ones));
    }
  } else {
    for (int64_t q = 0; q < quads; ++q) {
      const __m256i words = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(Broadcast(a + 4 * q)));
      const __m256i pairs[2] = {_mm256_shuffle_epi32(words, 0x00), _mm256_shuffle_epi32(words, 0x55)};
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const Step<8> b(stored + (2 * q + pair) * kStepBytes<8>);
        first = _mm256_add_epi32(first, _mm256_madd_epi16(b.first, pairs[pair]));
        last = _mm256_add_epi32(last, _mm256_madd_epi16(b.last, pairs[pair]));
      }
    }
  }
  sums[0] = first;
  sums[1] = last;
}

// One row without a zero point: the totals stay in registers, too, whose way through memory takes longer than a small
// group's products.
template <int bits, class Kind>
void DotOneRow(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  for (int64_t column = 0; column < kPanelColumns; column += kColumns) {
    ColumnValues<bits> total(StartOf(scales) + column);
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
      __m256i sums[2];
      SumOneRow<bits>(a.values + begin * 4, stored + begin * kQuadBytes<bits> + 2 * column, end - begin, sums);
      const GroupScale<bits, Kind> scale(scales, g, column);
      scale.AddTo(sums, a.sums[g * a.stride], a.scales[g * a.stride], total.half);
    }
    total.StoreTo(tile + column);
    ColumnValues<bits>(tile + column).StoreTo(tile + column);
  }
}

template <int bits, class Kind>
void MultiplyBlock(const RowRounding& block, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
                   float* tiles) {
  constexpr int64_t kTile = kVectorSlivers.rows * kPanelColumns;
  const RoundedRows of_first = block.Sliver(0);
  const int64_t slivers = block.slivers();
  const int32_t zero_point = of_first.zero_point;
  auto* const sums = static_cast<RowSums*>(memory.Reserve(slivers * kVectorSlivers.rows * kColumns * 4));
  // f(kColumns results in turn, the first of them being those of `column`).
  const auto for_results = [&](const auto& f) {
    for (int64_t s = 0; s < slivers; ++s)
      for (int64_t r = 0; r < block.Sliver(s).results(); ++r)
        for (int64_t column = 0; column < kPanelColumns; column += kColumns)
          f(tiles + s * kTile + r * kPanelColumns + column, column);
  };
  for_results([&](float* results, int64_t column) { ColumnValues<bits>(StartOf(scales) + column).StoreTo(results); });
  for (int64_t column = 0; column < kPanelColumns; column += kColumns)
    for (int64_t g = 0; g < of_first.groups; ++g) {
      const int64_t begin = g * of_first.group / 4;
      const int64_t end = (std::min(of_first.depth, (g + 1) * of_first.group) + 3) / 4;
      GroupScale<bits, Kind> scale(scales, g, column);
      for (int64_t q = begin; q < end; q += kChunk) {
        const int64_t quads = std::min(kChunk, end - q);
        const bool first = q == begin, last = q + quads == end;
        const Chunk<bits, Kind> chunk(stored + q * kQuadBytes<bits> + 2 * column, quads, of_first.rows > kBlock);
        const auto rows_of = [&](const RoundedRows& a, int64_t s) {
          return BlockRows{.values = a.values + q * a.rows * 4,
                           .next = a.rows * kQuadBytesOfA<bits>,
                           .sums = sums + s * kVectorSlivers.rows,
                           .row_sums = a.sums + g * a.stride,
                           .row_scales = a.scales + g * a.stride,
                           .total = tiles + s * kTile + column};
        };
        if (zero_point != 0) {
          // The row of ones is the same in all slivers.
          const BlockRows rows = rows_of(of_first, 0);
          const int64_t ones = of_first.results();
          chunk.Multiply(rows, of_first.rows, ones, ones + 1, first, nullptr);
          if (last) scale.SubtractZeroPoint(zero_point, rows.sums[ones], rows.row_sums[ones]);
        }
        for (int64_t s = 0; s < slivers; ++s) {
          const RoundedRows a = block.Sliver(s);
          chunk.Multiply(rows_of(a, s), a.rows, 0, a.results(), first, last ? &scale : nullptr);
        }
      }
    }
  if constexpr (bits == 4) for_results([](float* results, int64_t) { ColumnValues<bits>(results).StoreTo(results); });
}

template <int bits>
void Multiply(const RowRounding& block, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
              float* tiles) {
  const RoundedRows first = block.Sliver(0);
  WithKind(first, scales, [&](auto kind) {
    using Kind = decltype(kind);
    if (first.rows == 1) return DotOneRow<bits, Kind>(first, stored, scales, tiles);
    MultiplyBlock<bits, Kind>(block, stored, scales, memory, tiles);
  });
}

}  // namespace

RoundedBlockFunction Avx2RoundedBlock(int bits) { return bits == 8 ? &Multiply<8> : &Multiply<4>; }

#else

RoundedBlockFunction Avx2RoundedBlock(int) { return nullptr; }

#endif

}  // namespace npu::gemm
