// bfloat16 and 8-bit integers on ARM64: by dot products (SDOT, BFDOT, SUDOT) of a row of A with four columns of B, and
// where the machine has them, for more than a few rows, by matrix products (BFMMLA, SMMLA, USMMLA) of two rows with two
// columns over twice the depth.
//
// BFDOT and BFMMLA take denormals for zero, and round the sum of two products, and the sum of that with the result, to
// odd: with an error below one unit in the last place instead of half of one, but only once for two products.
#include <utility>

#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/microkernel.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace npu::gemm {

#if defined(__ARM_FEATURE_DOTPROD)

namespace {

// Beyond the level that this file is compiled for: the compiler uses these instructions where they are named only.
#define NPU_MATRIX_TARGET __attribute__((target("+bf16+i8mm")))
#define NPU_MATRIX_INLINE inline __attribute__((target("+bf16+i8mm"), always_inline))
#define NPU_MATRIX_LAMBDA __attribute__((target("+bf16+i8mm"), always_inline))

// Four words of 32 bits: elements along K of four rows or columns, or sums, of integers or of floats.
using Words = int32x4_t;
constexpr int kWordBytes = 4;
constexpr int kChunkWords = kChunkBytes / kWordBytes;

inline Words LoadWords(const void* p) { return vld1q_s32(static_cast<const int32_t*>(p)); }
inline void StoreWords(void* p, Words words) { vst1q_s32(static_cast<int32_t*>(p), words); }

// Dot<kLane> adds the products of word kLane of `a` with each word of `b`. AddMatrix adds [2][2] products of two rows
// and two columns, each two words.
struct SignedBytes {
  static constexpr int kDepth = 4;  // elements of a word
  static constexpr SliverFormat kFormat = SliverFormat::kSignedBytes;
  template <int kLane>
  static NPU_MATRIX_INLINE Words Dot(Words sum, Words b, Words a) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_s32(b), vreinterpretq_s8_s32(a), kLane);
  }
  static NPU_MATRIX_INLINE Words AddMatrix(Words sum, Words a, Words b) {
    return vmmlaq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
  }
  static Words Combined(Words x, Words y) { return vaddq_s32(x, y); }
};
struct UnsignedBytes {  // of A; those of B are signed
  static constexpr int kDepth = 4;
  static constexpr SliverFormat kFormat = SliverFormat::kBytes;
  template <int kLane>
  static NPU_MATRIX_INLINE Words Dot(Words sum, Words b, Words a) {
    return vsudotq_laneq_s32(sum, vreinterpretq_s8_s32(b), vreinterpretq_u8_s32(a), kLane);
  }
  static NPU_MATRIX_INLINE Words AddMatrix(Words sum, Words a, Words b) {
    return vusmmlaq_s32(sum, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
  }
  static Words Combined(Words x, Words y) { return vaddq_s32(x, y); }
};
struct Bf16Pairs {
  static constexpr int kDepth = 2;
  static constexpr SliverFormat kFormat = SliverFormat::kHalves;
  template <int kLane>
  static NPU_MATRIX_INLINE Words Dot(Words sum, Words b, Words a) {
    return vreinterpretq_s32_f32(
        vbfdotq_laneq_f32(vreinterpretq_f32_s32(sum), vreinterpretq_bf16_s32(b), vreinterpretq_bf16_s32(a), kLane));
  }
  static NPU_MATRIX_INLINE Words AddMatrix(Words sum, Words a, Words b) {
    return vreinterpretq_s32_f32(
        vbfmmlaq_f32(vreinterpretq_f32_s32(sum), vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b)));
  }
  static Words Combined(Words x, Words y) {
    return vreinterpretq_s32_f32(vaddq_f32(vreinterpretq_f32_s32(x), vreinterpretq_f32_s32(y)));
  }
};

template <class Elements, int kRows>
NPU_MATRIX_TARGET void DotTile(const Sliver& sliver, const void* b_panel, const Prefetch& ahead, int64_t depth,
                               float* tile, bool accumulate) {
  Prefetch prefetch = ahead;
  constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;  // as in FloatTile
  RowPointers<kRows> a(sliver);
  const auto* b = static_cast<const char*>(b_panel);

  Words sum[kChains][kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    sum[0][r][0] = accumulate ? LoadWords(tile + r * kPanelColumns) : vdupq_n_s32(0);
    sum[0][r][1] = accumulate ? LoadWords(tile + r * kPanelColumns + kLanes) : vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int chain = 1; chain < kChains; ++chain) sum[chain][r][0] = sum[chain][r][1] = vdupq_n_s32(0);
  }
  // One stored row of the panel times lane kLane of `of_rows`.
  const auto step = [&]<int kLane>(const Words(&of_rows)[kRows], std::integral_constant<int, kLane>) NPU_MATRIX_LAMBDA {
    constexpr int kChain = kLane % kChains;
    prefetch.Row<kPanelColumns * kWordBytes>();
    const Words low = LoadWords(b), high = LoadWords(b + kLanes * kWordBytes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sum[kChain][r][0] = Elements::template Dot<kLane>(sum[kChain][r][0], low, of_rows[r]);
      sum[kChain][r][1] = Elements::template Dot<kLane>(sum[kChain][r][1], high, of_rows[r]);
    }
    b += kPanelColumns * kWordBytes;
  };
  int64_t left = (depth + Elements::kDepth - 1) / Elements::kDepth;
  while (left > 0) {
    const int words = left < kChunkWords ? static_cast<int>(left) : kChunkWords;
    prefetch.Chunk();
    Words of_rows[kRows];
    int w = 0;
    for (; w + 4 <= words; w += 4) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) of_rows[r] = a.template Read<Words>(r, w * kWordBytes);
      step(of_rows, std::integral_constant<int, 0>{});
      step(of_rows, std::integral_constant<int, 1>{});
      step(of_rows, std::integral_constant<int, 2>{});
      step(of_rows, std::integral_constant<int, 3>{});
    }
    for (; w < words; ++w) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) of_rows[r] = vdupq_n_s32(a.template Read<int32_t>(r, w * kWordBytes));
      step(of_rows, std::integral_constant<int, 0>{});
    }
    left -= words;
    a.Advance(sliver.chunk_stride);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int chain = 1; chain < kChains; ++chain) {
      sum[0][r][0] = Elements::Combined(sum[0][r][0], sum[chain][r][0]);
      sum[0][r][1] = Elements::Combined(sum[0][r][1], sum[chain][r][1]);
    }
    StoreWords(tile + r * kPanelColumns, sum[0][r][0]);
    StoreWords(tile + r * kPanelColumns + kLanes, sum[0][r][1]);
  }
}

// The low, or the high, halves of two vectors.
inline Words LowHalves(Words x, Words y) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}
inline Words HighHalves(Words x, Words y) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)));
}

// Two stored rows of a panel become words of two columns each: two rows of words in, columns in pairs out.
template <class Elements, int kRows>
NPU_MATRIX_TARGET void MatrixTile(const Sliver& sliver, const void* b_panel, const Prefetch& ahead, int64_t depth,
                                  float* tile, bool accumulate) {
  Prefetch prefetch = ahead;
  constexpr int kRowPairs = (kRows + 1) / 2, kColumnPairs = kPanelColumns / 2;
  constexpr int kRowBytes = kPanelColumns * kWordBytes;
  RowPointers<kRows> a(sliver);
  const auto* b = static_cast<const char*>(b_panel);

  Words sum[kRowPairs][kColumnPairs];
#pragma GCC unroll 6
  for (int p = 0; p < kRowPairs; ++p) {
    float* first = tile + 2 * p * kPanelColumns;
    float* second = 2 * p + 1 < kRows ? first + kPanelColumns : first;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Words upper = accumulate ? LoadWords(first + v * kLanes) : vdupq_n_s32(0);
      const Words lower = accumulate ? LoadWords(second + v * kLanes) : vdupq_n_s32(0);
      sum[p][2 * v] = LowHalves(upper, lower);
      sum[p][2 * v + 1] = HighHalves(upper, lower);
    }
  }
  // `Bits`: as many of a row of A as are used of the two stored rows.
  const auto step = [&]<class Bits>(int word, const Words(&even)[2], const Words(&odd)[2], Bits) NPU_MATRIX_LAMBDA {
    const Words columns[kColumnPairs] = {vzip1q_s32(even[0], odd[0]), vzip2q_s32(even[0], odd[0]),
                                         vzip1q_s32(even[1], odd[1]), vzip2q_s32(even[1], odd[1])};
#pragma GCC unroll 6
    for (int p = 0; p < kRowPairs; ++p) {
      const uint64_t upper = a.template Read<Bits>(2 * p, word * kWordBytes);
      const uint64_t lower = 2 * p + 1 < kRows ? a.template Read<Bits>(2 * p + 1, word * kWordBytes) : 0;
      const Words rows = vreinterpretq_s32_u64(vcombine_u64(vcreate_u64(upper), vcreate_u64(lower)));
#pragma GCC unroll 4
      for (int c = 0; c < kColumnPairs; ++c) sum[p][c] = Elements::AddMatrix(sum[p][c], rows, columns[c]);
    }
  };
  int64_t left = (depth + Elements::kDepth - 1) / Elements::kDepth;
  for (; left >= 2; left -= kChunkWords) {
    prefetch.Chunk();
    for (int w = 0; w < kChunkWords && w + 2 <= left; w += 2, b += 2 * kRowBytes) {
      prefetch.Row<kRowBytes>();
      prefetch.Row<kRowBytes>();
      const Words even[2] = {LoadWords(b), LoadWords(b + kRowBytes / 2)};
      const Words odd[2] = {LoadWords(b + kRowBytes), LoadWords(b + kRowBytes + kRowBytes / 2)};
      step(w, even, odd, uint64_t{});
    }
    if (left < kChunkWords) break;
    a.Advance(sliver.chunk_stride);
  }
  if (left % 2 != 0) {
    const Words even[2] = {LoadWords(b), LoadWords(b + kRowBytes / 2)};
    const Words odd[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    step(static_cast<int>(left - 1), even, odd, uint32_t{});
  }
#pragma GCC unroll 6
  for (int p = 0; p < kRowPairs; ++p) {
    float* first = tile + 2 * p * kPanelColumns;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      StoreWords(first + v * kLanes, LowHalves(sum[p][2 * v], sum[p][2 * v + 1]));
      if (2 * p + 1 < kRows)
        StoreWords(first + kPanelColumns + v * kLanes, HighHalves(sum[p][2 * v], sum[p][2 * v + 1]));
    }
  }
}

constexpr int kDotRows = 2;      // take fewer operations than as halves of matrices
constexpr int kMatrixRows = 10;  // 20 sums, 4 pairs of columns and the rows that come next in 32 registers

template <class Elements, int kRows>
constexpr TileFunction TileOfRows() {
  if constexpr (kRows <= kDotRows) {
    return &DotTile<Elements, kRows>;
  } else {
    return &MatrixTile<Elements, kRows>;
  }
}

template <class Elements, int... kRows>
MicroKernel MakeMatrixKernel(std::integer_sequence<int, kRows...>) {
  return {.sliver_format = Elements::kFormat,
          .sliver_rows = sizeof...(kRows),
          .row_multiple = 1,
          .depth_multiple = Elements::kDepth,
          .rows_per_panel = 96,
          .functions = {nullptr, TileOfRows<Elements, kRows + 1>()...}};
}

template <class Elements, int... kRows>
MicroKernel MakeDotKernel(std::integer_sequence<int, kRows...>) {
  return {.sliver_format = Elements::kFormat,
          .sliver_rows = sizeof...(kRows),
          .row_multiple = 1,
          .depth_multiple = Elements::kDepth,
          .rows_per_panel = 64,
          .functions = {nullptr, &DotTile<Elements, kRows + 1>...}};
}

NPU_MATRIX_TARGET void RoundWholeRows(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r, tile += kPanelColumns, out += row_stride) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(tile));
    vst1q_u16(reinterpret_cast<uint16_t*>(out),
              vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(tile + kLanes))));
  }
}

using MatrixRows = std::make_integer_sequence<int, kMatrixRows>;

}  // namespace

const MicroKernel* Bf16Kernel() {
  static const MicroKernel kernel = MakeMatrixKernel<Bf16Pairs>(MatrixRows{});
  return Features().neon_bf16 ? &kernel : nullptr;
}

const MicroKernel* IntegerDotKernel(DType a) {
  constexpr int kRows = 8;  // 16 sums, and four words of each row
  static const MicroKernel of_dots = MakeDotKernel<SignedBytes>(std::make_integer_sequence<int, kRows>{});
  static const MicroKernel of_signed = MakeMatrixKernel<SignedBytes>(MatrixRows{});
  static const MicroKernel of_unsigned = MakeMatrixKernel<UnsignedBytes>(MatrixRows{});
  if (!Features().neon_bf16) return &of_dots;
  return a == DType::kUInt8 ? &of_unsigned : &of_signed;
}

bool RoundRowsToBf16(const float* tile, int64_t rows, BFloat16* out, int64_t row_stride) {
  static const bool available = Features().neon_bf16;
  if (available) RoundWholeRows(tile, rows, out, row_stride);
  return available;
}

#elif defined(__aarch64__)  // the portable level

const MicroKernel* Bf16Kernel() { return nullptr; }
const MicroKernel* IntegerDotKernel(DType) { return nullptr; }
bool RoundRowsToBf16(const float*, int64_t, BFloat16*, int64_t) { return false; }

#endif

}  // namespace npu::gemm
