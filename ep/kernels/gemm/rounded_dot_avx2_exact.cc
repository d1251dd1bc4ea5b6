// Rows of A as int8 times a panel of stored integers, on processors without VPDPBUSD: 4-bit integers by VPMADDUBSW,
// whose sums of 16 bits hold eight products of pairs, and 8-bit ones by VPMADDWD. Rounded as in rounded_dot_exact.cc.
#include <algorithm>
#include <utility>

#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/rounded_steps_avx2.h"

namespace npu::gemm {

#if defined(__AVX2__)

namespace {

using namespace avx2;

constexpr int kBlock = 4;  // rows of A at a time: 8 sums, two vectors of B, and what is multiplied

// Four rows of K each, unpacked into a quarter of the L1 cache. All rows of a sliver are multiplied with them while its
// values and totals, too, are there: of one group at a time, A comes from L2 for each.
template <int bits>
constexpr int64_t kChunkQuads = bits == 4 ? 128 : 64;
constexpr int64_t kChunkGroups = 16;

// Of 4-bit integers: a pair is at most 15 * 128 * 2, so that eight of them and their sum fit into 16 bits.
constexpr int64_t kPairs = 8;

// The sums of kColumns columns, those of 4 bits in the order of SwapOrder.
using RowSums = int32_t[kColumns];

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
  GroupScale() = default;
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

// Groups of a panel, or a part of one that is longer than a chunk.
struct Stretch {
  int64_t group, groups;
  int64_t begin, quads;
  int64_t group_quads;
  bool first, last;  // part of a group
};

// f(each Stretch of a panel in turn).
template <int bits, class F>
void ForStretches(const RoundedRows& a, const F& f) {
  const int64_t group_quads = a.group / 4, depth_quads = (a.depth + 3) / 4;
  const int64_t whole = std::clamp<int64_t>(kChunkQuads<bits> / group_quads, 1, kChunkGroups);
  for (int64_t g = 0; g < a.groups; g += whole) {
    const int64_t groups = std::min(whole, a.groups - g);
    const int64_t begin = g * group_quads, end = std::min(depth_quads, (g + groups) * group_quads);
    for (int64_t q = begin; q < end; q += kChunkQuads<bits>) {
      const int64_t quads = std::min(kChunkQuads<bits>, end - q);
      f(Stretch{g, groups, q, quads, group_quads, q == begin, q + quads == end});
    }
  }
}

// Rows of a sliver from the first quad of a stretch on, and what becomes of their products.
struct StretchRows {
  const int8_t* values;
  int64_t next;   // bytes from a quad of a row to the one behind it
  RowSums* sums;  // of the part of the group before
  const int32_t* row_sums;
  const float* row_scales;
  int64_t stride;  // of the two, from group to group
  float* total;

  StretchRows From(int64_t row, int64_t bytes_of_quad) const {
    return {values + row * bytes_of_quad, next, sums + row, row_sums + row, row_scales + row, stride,
            total + row * kPanelColumns};
  }
  StretchRows NextGroup(int64_t quads) const {
    return {values + quads * next, next, sums, row_sums + stride, row_scales + stride, stride, total};
  }
};

// f(0), f(1), ... as constants: an array that a loop indexes is kept in memory, not in registers.
template <int kCount, class F>
NPU_SIMD_INLINE void Unrolled(const F& f) {
  const auto call = [&]<int... i>(std::integer_sequence<int, i...>)
                        NPU_SIMD_INLINE_LAMBDA { (f(std::integral_constant<int, i>()), ...); };
  call(std::make_integer_sequence<int, kCount>());
}

// Sums of kColumns columns of a row, in registers.
struct RowSum {
  __m256i half[2];

  // Has both sums before the next step: otherwise the compiler adds up products of several steps first, for which there
  // are too few registers.
  NPU_SIMD_INLINE void Settle() { asm("" : "+v"(half[0]), "+v"(half[1])); }
};
template <int kRows>
using BlockSums = RowSum[kRows];

// Adds the products of kRows rows with a quad to `sum`, or begins it with them.
template <int kRows>
NPU_SIMD_INLINE void AddQuad(const int8_t* a, const Step<4>& b, bool begins, BlockSums<kRows>& sum) {
  Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
    const __m256i of_row = Broadcast(a + 4 * r);
    const __m256i first = _mm256_maddubs_epi16(b.first, of_row), last = _mm256_maddubs_epi16(b.last, of_row);
    sum[r].half[0] = begins ? first : _mm256_add_epi16(sum[r].half[0], first);
    sum[r].half[1] = begins ? last : _mm256_add_epi16(sum[r].half[1], last);
    sum[r].Settle();
  });
}

// Adds the products of kRows rows with quads [begin, end), kPairs at most, to `total`, or begins it with them.
template <int kRows, class Steps>
NPU_SIMD_INLINE void AddPairs(const int8_t* a, int64_t next, const Steps& steps, int64_t begin, int64_t end,
                              bool begins, BlockSums<kRows>& total) {
  BlockSums<kRows> sum;
  a += begin * next;
  AddQuad<kRows>(a, steps[begin], true, sum);
  if (end - begin == kPairs) {
    Unrolled<kPairs - 1>([&](auto i)
                             NPU_SIMD_INLINE_LAMBDA { AddQuad<kRows>(a += next, steps[begin + i + 1], false, sum); });
  } else {
    for (int64_t q = begin + 1; q < end; ++q) AddQuad<kRows>(a += next, steps[q], false, sum);
  }
  const __m256i ones = _mm256_set1_epi16(1);
  Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
    Unrolled<2>([&](auto half) NPU_SIMD_INLINE_LAMBDA {
      const __m256i sums = _mm256_madd_epi16(sum[r].half[half], ones);
      total[r].half[half] = begins ? sums : _mm256_add_epi32(total[r].half[half], sums);
    });
  });
}

// total = the products of kRows rows of A with `quads` quads, whose steps are `steps`.
template <int kRows, class Steps>
NPU_SIMD_INLINE void SumNibbles(const int8_t* a, int64_t next, int64_t quads, const Steps& steps,
                                BlockSums<kRows>& total) {
  AddPairs<kRows>(a, next, steps, 0, std::min(quads, kPairs), true, total);
  for (int64_t q = kPairs; q < quads; q += kPairs)
    AddPairs<kRows>(a, next, steps, q, std::min(quads, q + kPairs), false, total);
}

template <int kRows, class Steps>
NPU_SIMD_INLINE void SumWords(const int8_t* a, int64_t next, int64_t quads, const Steps& steps,
                              BlockSums<kRows>& total) {
  Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA { total[r].half[0] = total[r].half[1] = _mm256_setzero_si256(); });
  for (int64_t q = 0; q < quads; ++q, a += next)
    Unrolled<2>([&](auto pair) NPU_SIMD_INLINE_LAMBDA {
      const Step<8> b = steps[2 * q + pair];
      Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
        const __m256i of_row = Broadcast(a + 8 * r + 4 * pair);
        total[r].half[0] = _mm256_add_epi32(total[r].half[0], _mm256_madd_epi16(b.first, of_row));
        total[r].half[1] = _mm256_add_epi32(total[r].half[1], _mm256_madd_epi16(b.last, of_row));
        total[r].Settle();
      });
    });
}

// sums = the products of kRows rows of A with `quads` quads.
template <int bits, int kRows, class Steps>
NPU_SIMD_INLINE void SumProducts(const int8_t* a, int64_t next, int64_t quads, const Steps& steps,
                                 BlockSums<kRows>& sums) {
  if constexpr (bits == 4) {
    SumNibbles<kRows>(a, next, quads, steps, sums);
  } else {
    SumWords<kRows>(a, next, quads, steps, sums);
  }
}

// How groups lie in a stretch: whole ones of kPairs quads, or of a multiple of them, have no branches between products,
// and the former no sums in memory.
enum class Groups { kAny, kMultiples, kPairs };

// Multiplies kRows rows with `quads` quads of one group.
template <int bits, class Kind, Groups groups, int kRows, class Steps>
NPU_SIMD_INLINE void MultiplyRows(const StretchRows& a, int64_t quads, const Steps& steps, bool first, bool last,
                                  const GroupScale<bits, Kind>& scale) {
  BlockSums<kRows> sums;
  if constexpr (groups != Groups::kAny) {
    AddPairs<kRows>(a.values, a.next, steps, 0, kPairs, true, sums);
    if constexpr (groups == Groups::kMultiples)
      for (int64_t q = kPairs; q < quads; q += kPairs)
        AddPairs<kRows>(a.values, a.next, steps, q, q + kPairs, false, sums);
  } else {
    SumProducts<bits, kRows>(a.values, a.next, quads, steps, sums);
  }
  if constexpr (groups == Groups::kAny) {
    if (!first)
      Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
        for (int half = 0; half < 2; ++half)
          sums[r].half[half] = _mm256_add_epi32(sums[r].half[half], Load(a.sums[r] + 8 * half));
      });
    if (!last) {
      Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
        Store(a.sums[r], sums[r].half[0]), Store(a.sums[r] + 8, sums[r].half[1]);
      });
      return;
    }
  }
  Unrolled<kRows>([&](auto r) NPU_SIMD_INLINE_LAMBDA {
    float* const to = a.total + r * kPanelColumns;
    __m256 total[2] = {_mm256_loadu_ps(to), _mm256_loadu_ps(to + 8)};
    scale.AddTo(sums[r].half, a.row_sums[r], a.row_scales[r], total);
    _mm256_storeu_ps(to, total[0]), _mm256_storeu_ps(to + 8, total[1]);
  });
}

// Multiplies `count` rows with a stretch, whose groups' scales are `scales`.
template <int bits, class Kind, Groups groups, class Steps>
__attribute__((noinline)) void MultiplySliver(StretchRows a, int64_t count, const Stretch& stretch, const Steps& steps,
                                              const GroupScale<bits, Kind>* scales) {
  const bool first = stretch.first, last = stretch.last;
  for (int64_t g = 0; g < stretch.groups; ++g, a = a.NextGroup(stretch.group_quads)) {
    const int64_t begin = g * stretch.group_quads, quads = std::min(stretch.group_quads, stretch.quads - begin);
    const Steps of_group = steps.From(begin);
    int64_t r = 0;
    for (; r + kBlock <= count; r += kBlock)
      MultiplyRows<bits, Kind, groups, kBlock>(a.From(r, kQuadBytesOfA<bits>), quads, of_group, first, last, scales[g]);
    const auto multiply_left = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
      const StretchRows left = a.From(r, kQuadBytesOfA<bits>);
      ((count - r == kRows + 1
            ? MultiplyRows<bits, Kind, groups, kRows + 1>(left, quads, of_group, first, last, scales[g])
            : void()),
       ...);
    };
    multiply_left(std::make_integer_sequence<int, kBlock - 1>{});
  }
}

// A stretch of kColumns columns, for all slivers.
template <int bits, class Kind>
class Chunk {
 public:
  // Of more than kBlock rows: fewer unpack the panel while they are multiplied.
  Chunk(const uint8_t* stored, const PanelScales& scales, int64_t column, const Stretch& stretch, bool unpack)
      : stored_(stored + stretch.begin * kQuadBytes<bits> + 2 * column), stretch_(stretch), unpacks_(unpack) {
    for (int64_t g = 0; g < stretch.groups; ++g) scales_[g] = GroupScale<bits, Kind>(scales, stretch.group + g, column);
    if (!unpack) return;
    for (int64_t i = 0; i < stretch.quads * kStepsOfQuad<bits>; ++i) {
      const Step<bits> step(stored_ + i * kStepBytes<bits>);
      unpacked_[2 * i] = step.first;
      unpacked_[2 * i + 1] = step.last;
    }
  }

  // `row`: that of ones.
  void SubtractZeroPoint(StretchRows row, int32_t zero_point) {
    for (int64_t g = 0; g < stretch_.groups; ++g, row = row.NextGroup(stretch_.group_quads)) {
      Stretch one = stretch_;
      one.begin = g * stretch_.group_quads, one.quads = std::min(stretch_.group_quads, stretch_.quads - one.begin);
      one.groups = 1, one.last = false;
      MultiplySliver<bits, Kind, Groups::kAny>(row, 1, one, PanelSteps<bits>{stored_}.From(one.begin), scales_ + g);
      if (stretch_.last) scales_[g].SubtractZeroPoint(zero_point, row.sums[0], row.row_sums[0]);
    }
  }

  void Multiply(const StretchRows& a, int64_t count) const {
    if (!unpacks_)
      return MultiplySliver<bits, Kind, Groups::kAny>(a, count, stretch_, PanelSteps<bits>{stored_}, scales_);
    const UnpackedSteps<bits> steps{unpacked_};
    if constexpr (bits == 4) {
      const int64_t quads = stretch_.group_quads;
      if (quads % kPairs == 0 && stretch_.quads == stretch_.groups * quads)
        return quads == kPairs ? MultiplySliver<bits, Kind, Groups::kPairs>(a, count, stretch_, steps, scales_)
                               : MultiplySliver<bits, Kind, Groups::kMultiples>(a, count, stretch_, steps, scales_);
    }
    MultiplySliver<bits, Kind, Groups::kAny>(a, count, stretch_, steps, scales_);
  }

 private:
  const uint8_t* stored_;
  Stretch stretch_;
  bool unpacks_;
  GroupScale<bits, Kind> scales_[kChunkGroups];
  __m256i unpacked_[kChunkQuads<bits> * kStepsOfQuad<bits> * 2];
};

// One row without a zero point: the totals stay in registers, too, whose way through memory takes longer than a small
// group's products.
template <int bits, class Kind>
void DotOneRow(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  for (int64_t column = 0; column < kPanelColumns; column += kColumns) {
    ColumnValues<bits> total(StartOf(scales) + column);
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
      BlockSums<1> sums;
      SumProducts<bits, 1>(a.values + begin * kQuadBytesOfA<bits>, kQuadBytesOfA<bits>, end - begin,
                           PanelSteps<bits>{stored + 2 * column}.From(begin), sums);
      const GroupScale<bits, Kind> scale(scales, g, column);
      scale.AddTo(sums[0].half, a.sums[g * a.stride], a.scales[g * a.stride], total.half);
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
    ForStretches<bits>(of_first, [&](const Stretch& stretch) {
      Chunk<bits, Kind> chunk(stored, scales, column, stretch, of_first.rows > kBlock);
      const auto rows_of = [&](const RoundedRows& a, int64_t s) {
        return StretchRows{.values = a.values + stretch.begin * a.rows * kQuadBytesOfA<bits>,
                           .next = a.rows * kQuadBytesOfA<bits>,
                           .sums = sums + s * kVectorSlivers.rows,
                           .row_sums = a.sums + stretch.group * a.stride,
                           .row_scales = a.scales + stretch.group * a.stride,
                           .stride = a.stride,
                           .total = tiles + s * kTile + column};
      };
      // The row of ones is the same in all slivers.
      if (zero_point != 0)
        chunk.SubtractZeroPoint(rows_of(of_first, 0).From(of_first.results(), kQuadBytesOfA<bits>), zero_point);
      for (int64_t s = 0; s < slivers; ++s) {
        const RoundedRows a = block.Sliver(s);
        chunk.Multiply(rows_of(a, s), a.results());
      }
    });
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

RoundedBlock Avx2RoundedBlock(int bits) {
  SliverOrder words = kVectorSlivers;
  words.bytes = 2;
  return bits == 8 ? RoundedBlock{&Multiply<8>, words} : RoundedBlock{&Multiply<4>, kVectorSlivers};
}

#else

RoundedBlock Avx2RoundedBlock(int) { return {}; }

#endif

}  // namespace npu::gemm
