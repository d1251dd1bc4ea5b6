// Rows of A as int8 times a panel of stored integers, by tile registers. Each group of K gives a block of sums of 32
// rows, whose scaling takes as long as its products: while the tile unit multiplies a block, the vector unit scales the
// block before last, whose sums are in memory by then. Floats are rounded as in rounded_dot_exact.cc.
#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/unpacked_quads.h"
#include "ep/runtime/isa.h"

#if defined(__AVX512F__)
#include "ep/kernels/amx_tiles.h"
#endif

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

constexpr int64_t kFewestRows = 8;
constexpr int64_t kRows = kTileSlivers.rows;
constexpr int64_t kUnit = kTileSlivers.unit;
constexpr int64_t kRowBytes = kUnpackedQuadBytes;      // and of a row of sums
constexpr int64_t kUnitBytes = kUnit * kPanelColumns;  // of a panel
constexpr int64_t kSliverUnitBytes = kUnit * kRows;    // of A
constexpr int64_t kSums = kRows * kPanelColumns;       // of a block
constexpr int kKeptBlocks = 3;                         // multiplied, stored and scaled at a time

// a + b * c; of integers' sums the product is rounded by itself.
template <bool kIntegers>
inline __m512 MultiplyAdd(__m512 b, __m512 c, __m512 a) {
  return kIntegers ? _mm512_add_ps(a, _mm512_mul_ps(b, c)) : _mm512_fmadd_ps(b, c, a);
}

// Adds the scaled sums of group g to the results of `a`, the rows of a sliver.
template <bool kIntegers, bool kOffset>
void AddScaled(const RoundedRows& a, int64_t g, const int32_t* sums, const PanelScales& scales, float* tile) {
  const Columns scale = Columns::Unpacked(scales.scale + g * scales.stride);
  const Columns offset = kOffset ? Columns::Unpacked(scales.offset + g * scales.stride) : Columns{};
  const int64_t results = a.results(), at = g * a.stride;
  int32_t of_zero = 0;
  __m512i of_zero0 = _mm512_setzero_si512(), of_zero1 = of_zero0;
  if (kIntegers && a.zero_point != 0) {
    of_zero = a.zero_point * a.sums[at + results];
    const __m512i zero_point = _mm512_set1_epi32(a.zero_point);
    of_zero0 = _mm512_mullo_epi32(zero_point, _mm512_load_si512(sums + results * kPanelColumns));
    of_zero1 = _mm512_mullo_epi32(zero_point, _mm512_load_si512(sums + results * kPanelColumns + 16));
  }
  // What the sums begin with: one row for all rows, then those of the group before.
  alignas(64) float begin[kPanelColumns] = {};
  if (g == 0 && scales.first) {
    const Columns first = Columns::Unpacked(scales.first);
    _mm512_store_ps(begin, first.first);
    _mm512_store_ps(begin + 16, first.second);
  }
  const float* before = g == 0 ? begin : tile;
  const int64_t before_step = g == 0 ? 0 : kPanelColumns;
  for (int64_t r = 0; r < results; ++r, sums += kPanelColumns, tile += kPanelColumns, before += before_step) {
    __m512i whole0 = _mm512_load_si512(sums), whole1 = _mm512_load_si512(sums + 16);
    if constexpr (kIntegers) {
      whole0 = _mm512_sub_epi32(whole0, of_zero0);
      whole1 = _mm512_sub_epi32(whole1, of_zero1);
    }
    __m512 sum0 = _mm512_cvtepi32_ps(whole0), sum1 = _mm512_cvtepi32_ps(whole1);
    if constexpr (kOffset) {
      const __m512 row_sum = _mm512_set1_ps(static_cast<float>(a.sums[at + r] - of_zero));
      sum0 = MultiplyAdd<kIntegers>(offset.first, row_sum, sum0);
      sum1 = MultiplyAdd<kIntegers>(offset.second, row_sum, sum1);
    }
    const __m512 row_scale = _mm512_set1_ps(a.scales[at + r]);
    _mm512_store_ps(tile, MultiplyAdd<kIntegers>(sum0, scale.first * row_scale, _mm512_load_ps(before)));
    _mm512_store_ps(tile + 16, MultiplyAdd<kIntegers>(sum1, scale.second * row_scale, _mm512_load_ps(before + 16)));
  }
}

// A group and a sliver, in the order in which they are multiplied.
struct BlockIndex {
  int64_t group = 0, sliver = 0;
  void Next(int64_t slivers) {
    if (++sliver < slivers) return;
    sliver = 0;
    ++group;
  }
};

template <int bits, int kRowTiles, bool kIntegers, bool kOffset>
void MultiplyBlock(const RowRounding& a, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
                   float* tiles) {
  using Block = amx::Sums<kRowTiles, 2>;
  const RoundedRows first = a.Sliver(0);
  const int64_t slivers = a.slivers(), group = std::min(first.group, a.columns());
  const int64_t units = (group - 1) / kUnit + 1;  // of all groups but the last
  float* sums = static_cast<float*>(memory.Reserve(kKeptBlocks * kSums * 4 + units * kUnitBytes));
  auto* panel = reinterpret_cast<char*>(sums + kKeptBlocks * kSums);
  const auto sums_of = [&](int64_t block) { return sums + block % kKeptBlocks * kSums; };
  BlockIndex scaled;
  const auto scale_next = [&](int64_t block) {
    const RoundedRows rows = a.Sliver(scaled.sliver);
    AddScaled<kIntegers, kOffset>(rows, scaled.group, reinterpret_cast<const int32_t*>(sums_of(block)), scales,
                                  tiles + scaled.sliver * kSums);
    scaled.Next(slivers);
  };
  const amx::Scope scope;
  int64_t block = 0;
  for (int64_t g = 0; g < first.groups; ++g) {
    const int64_t begin = g * group, depth = std::min(group, a.columns() - begin);
    UnpackQuads<bits>(stored + begin / 4 * kQuadBytes<bits>, (depth + 3) / 4, reinterpret_cast<int8_t*>(panel),
                      AddedBytes::None(), [](__m512i, __m512i) {});
    const int64_t steps = (depth - 1) / kUnit + 1;
    for (int64_t s = 0; s < slivers; ++s, ++block) {
      const auto* left =
          reinterpret_cast<const char*>(first.values) + s * kRows * first.depth + g * units * kSliverUnitBytes;
      const char* right = panel;
      amx::CompilerBarrier();
      float* before = sums_of(block + kKeptBlocks - 1);
      Block::template AddFirst<amx::DotInt8, false>(before, before, kRowBytes, left, kUnit, right, kRowBytes);
      for (int64_t step = 1; step < steps; ++step) {
        left += kSliverUnitBytes;
        right += kUnitBytes;
        Block::template Add<amx::DotInt8>(left, kUnit, right, kRowBytes);
        if (step % amx::kAwakeSteps == amx::kAwakeSteps - 1) {
          amx::Store<6>(sums_of(block), kRowBytes);  // the sums are stored over it
        }
      }
      amx::CompilerBarrier();
      if (block >= 2) scale_next(block - 2);
    }
  }
  Block::StoreTo(sums_of(block - 1), kRowBytes);
  amx::CompilerBarrier();
  if (block >= 2) scale_next(block - 2);
  scale_next(block - 1);
  for (int64_t s = 0; s < slivers; ++s)
    for (int64_t r = 0; r < a.Sliver(s).results(); ++r) Columns::PutInOrder(tiles + s * kSums + r * kPanelColumns);
}

template <int bits, int kRowTiles>
void MultiplyAnyBlock(const RowRounding& a, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
                      float* tiles) {
  const auto multiply = [&](auto function) { function(a, stored, scales, memory, tiles); };
  if (a.integers()) {
    scales.offset ? multiply(MultiplyBlock<bits, kRowTiles, true, true>)
                  : multiply(MultiplyBlock<bits, kRowTiles, true, false>);
  } else {
    scales.offset ? multiply(MultiplyBlock<bits, kRowTiles, false, true>)
                  : multiply(MultiplyBlock<bits, kRowTiles, false, false>);
  }
}

template <int bits>
void MultiplyTiles(const RowRounding& a, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
                   float* tiles) {
  const bool one_tile = a.slivers() == 1 && a.Sliver(0).rows <= kRows / 2;
  (one_tile ? MultiplyAnyBlock<bits, 1> : MultiplyAnyBlock<bits, 2>)(a, stored, scales, memory, tiles);
}

}  // namespace

RoundedBlockFunction SelectRoundedTiles(int bits, int64_t rows, int64_t group) {
  if (!Features().amx_int8 || rows < kFewestRows || group < kSmallestTileGroup) return nullptr;
  return bits == 8 ? &MultiplyTiles<8> : &MultiplyTiles<4>;
}

#else

RoundedBlockFunction SelectRoundedTiles(int, int64_t, int64_t) { return nullptr; }

#endif

}  // namespace npu::gemm
