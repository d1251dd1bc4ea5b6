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
constexpr int kBlock = 3;         // rows of A at a time: 8 sums, two vectors of B, and what is multiplied
constexpr int64_t kChunk = 32;    // quads: four rows of K each, that stay in the L1 cache

// The sums of kColumns columns. Of 4 bits the first vector has columns 0 to 3 and 8 to 11.
using RowSums = int32_t[kColumns];

inline __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void Store(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline __m256i Broadcast(const void* four_bytes) {
  int32_t word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Four rows of K of kColumns columns, as a product takes them.
template <int bits>
struct Quad;

// Unsigned bytes: four of each column side by side, and as many signed bytes of A.
template <>
struct Quad<4> {
  static constexpr int64_t kBytesOfA = 4;
  static constexpr int64_t kVectors = 2;
  __m256i first, last;

  explicit Quad(const uint8_t* stored) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    const __m256i half = _mm256_set1_epi8(15), bytes = Load(stored);
    const __m256i low = _mm256_and_si256(bytes, half);  // two rows of K each
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    first = _mm256_unpacklo_epi16(low, high);
    last = _mm256_unpackhi_epi16(low, high);
  }
  // Vector by vector: as a whole, the compiler copies it in halves, which a load of a vector waits for.
  explicit Quad(const __m256i* unpacked) : first(unpacked[0]), last(unpacked[1]) {}
  void StoreTo(__m256i* unpacked) const { unpacked[0] = first, unpacked[1] = last; }
};

// Words: of the first and the last columns, two rows of K side by side, and as many words of A.
template <>
struct Quad<8> {
  static constexpr int64_t kBytesOfA = 8;
  static constexpr int64_t kVectors = 4;
  __m256i first[2], last[2];

  explicit Quad(const uint8_t* stored) {
    for (int pair = 0; pair < 2; ++pair, stored += kStoredElements) {
      __builtin_prefetch(stored + kStoredPrefetchBytes);
      first[pair] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored)));
      last[pair] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored + kColumns)));
    }
  }
  explicit Quad(const __m256i* unpacked) : first{unpacked[0], unpacked[1]}, last{unpacked[2], unpacked[3]} {}
  void StoreTo(__m256i* unpacked) const {
    unpacked[0] = first[0], unpacked[1] = first[1], unpacked[2] = last[0], unpacked[3] = last[1];
  }
};

// Adds kRows rows of A, of which a quad is `step` bytes behind the one before, times `quads` quads to `sums`. `quad_at`
// returns a quad by its index.
template <int kRows, class QuadAt>
inline void AddNibbles(const int8_t* a, int64_t step, int64_t quads, const QuadAt& quad_at, RowSums* sums) {
  // A pair is at most 15 * 128 * 2, so that eight of them and their sum fit into 16 bits.
  constexpr int64_t kPairs = 8;
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t q = 0; q < quads;) {
    __m256i sum[kRows][2] = {};
    for (const int64_t end = std::min(quads, q + kPairs); q < end; ++q, a += step) {
      const Quad<4> b = quad_at(q);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256i of_row = Broadcast(a + 4 * r);
        sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(b.first, of_row));
        sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(b.last, of_row));
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      int32_t* const total = sums[r];
      Store(total, _mm256_add_epi32(Load(total), _mm256_madd_epi16(sum[r][0], ones)));
      Store(total + 8, _mm256_add_epi32(Load(total + 8), _mm256_madd_epi16(sum[r][1], ones)));
    }
  }
}

template <int kRows, class QuadAt>
inline void AddWords(const int8_t* a, int64_t step, int64_t quads, const QuadAt& quad_at, RowSums* sums) {
  __m256i sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = Load(sums[r]), sum[r][1] = Load(sums[r] + 8);
  for (int64_t q = 0; q < quads; ++q, a += step) {
    const Quad<8> b = quad_at(q);
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair)
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256i of_row = Broadcast(a + 8 * r + 4 * pair);
        sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(b.first[pair], of_row));
        sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(b.last[pair], of_row));
      }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) Store(sums[r], sum[r][0]), Store(sums[r] + 8, sum[r][1]);
}

template <int bits, int kRows, class QuadAt>
__attribute__((noinline)) void AddRows(const int8_t* a, int64_t step, int64_t quads, const QuadAt& quad_at,
                                       RowSums* sums) {
  if constexpr (bits == 4) {
    AddNibbles<kRows>(a, step, quads, quad_at, sums);
  } else {
    AddWords<kRows>(a, step, quads, quad_at, sums);
  }
}

// The same for 1 to kBlock rows.
template <int bits, class QuadAt>
void AddBlock(int64_t rows, const int8_t* a, int64_t step, int64_t quads, const QuadAt& quad_at, RowSums* sums) {
  const auto add = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    ((rows == kRows + 1 ? AddRows<bits, kRows + 1>(a, step, quads, quad_at, sums) : void()), ...);
  };
  add(std::make_integer_sequence<int, kBlock>{});
}

// Adds the products of all rows of a sliver with up to kChunk quads.
template <int bits>
void AddChunk(int64_t rows, const int8_t* a, const uint8_t* stored, int64_t quads, RowSums* sums) {
  constexpr int64_t kBytesOfA = Quad<bits>::kBytesOfA;
  const auto from_panel = [&](int64_t q) { return Quad<bits>(stored + q * kQuadBytes<bits>); };
  alignas(32) int16_t words[bits == 8 ? kChunk * kVectorSlivers.rows * 4 : 1];
  if constexpr (bits == 8) {
    const int64_t count = quads * rows * 4;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) words[i] = a[i];
    a = reinterpret_cast<const int8_t*>(words);
  }
  const int64_t step = rows * kBytesOfA;
  if (rows <= kBlock) return AddBlock<bits>(rows, a, step, quads, from_panel, sums);
  constexpr int64_t kVectors = Quad<bits>::kVectors;
  __m256i unpacked[kChunk * kVectors];
  for (int64_t q = 0; q < quads; ++q) from_panel(q).StoreTo(unpacked + q * kVectors);
  const auto from_memory = [&](int64_t q) { return Quad<bits>(unpacked + q * kVectors); };
  for (int64_t r = 0; r < rows; r += kBlock)
    AddBlock<bits>(std::min<int64_t>(kBlock, rows - r), a + r * kBytesOfA, step, quads, from_memory, sums + r);
}

// Sums of columns 0 to 7 or 8 to 15.
template <int bits>
inline __m256i ColumnSums(const RowSums& sums, int half) {
  const __m256i first = Load(sums), last = Load(sums + 8);
  if constexpr (bits == 8) return half == 0 ? first : last;
  return half == 0 ? _mm256_permute2x128_si256(first, last, 0x20) : _mm256_permute2x128_si256(first, last, 0x31);
}

// a + b * c, of integers' sums with a rounding of the product.
template <bool kIntegers>
inline __m256 MultiplyAdd(__m256 b, __m256 c, __m256 a) {
  return kIntegers ? _mm256_add_ps(a, _mm256_mul_ps(b, c)) : _mm256_fmadd_ps(b, c, a);
}

// Adds the scaled sums of group g to kColumns columns of the tile, from `column` on.
template <int bits, bool kIntegers, bool kOffset>
void ScaleGroup(const RoundedRows& a, int64_t g, const PanelScales& scales, int64_t column, const RowSums* sums,
                float* tile) {
  constexpr int32_t kShift = bits == 4 ? 8 : 0;  // added to the stored integers to make them unsigned
  static constexpr float kZeros[kColumns] = {};
  const int64_t results = a.results();
  const int32_t zero_point = a.zero_point;
  const int32_t* const row_sums = a.sums + g * a.stride;
  const float* const row_scales = a.scales + g * a.stride;
  const int32_t ones = zero_point == 0 ? 0 : row_sums[results];
  __m256i of_zero[2];
  __m256 scale[2], offset[2] = {};
  for (int half = 0; half < 2; ++half) {
    const int64_t at = g * scales.stride + column + 8 * half;
    scale[half] = _mm256_loadu_ps(scales.scale + at);
    if (kOffset) offset[half] = _mm256_loadu_ps(scales.offset + at);
    of_zero[half] = _mm256_setzero_si256();
    if (zero_point == 0) continue;
    const __m256i of_ones = _mm256_sub_epi32(ColumnSums<bits>(sums[results], half), _mm256_set1_epi32(kShift * ones));
    of_zero[half] = _mm256_mullo_epi32(_mm256_set1_epi32(zero_point), of_ones);
  }
  float* total = tile + column;
  const float* before = g != 0 ? total : scales.first ? scales.first + column : kZeros;
  const int64_t before_step = g != 0 ? kPanelColumns : 0;
  for (int64_t r = 0; r < results; ++r, total += kPanelColumns, before += before_step) {
    const __m256i shifted = _mm256_set1_epi32(kShift * row_sums[r]);
    const __m256 row_sum = _mm256_cvtepi32_ps(_mm256_set1_epi32(row_sums[r] - zero_point * ones));
    const __m256 row_scale = _mm256_set1_ps(row_scales[r]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i whole = _mm256_sub_epi32(ColumnSums<bits>(sums[r], half), shifted);
      __m256 sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(whole, of_zero[half]));
      if (kOffset) sum = MultiplyAdd<kIntegers>(offset[half], row_sum, sum);
      const __m256 start = _mm256_loadu_ps(before + 8 * half);
      _mm256_storeu_ps(total + 8 * half, MultiplyAdd<kIntegers>(sum, _mm256_mul_ps(scale[half], row_scale), start));
    }
  }
}

template <int bits>
auto SelectScaleGroup(bool integers, bool offset) {
  if (integers) return offset ? &ScaleGroup<bits, true, true> : &ScaleGroup<bits, true, false>;
  return offset ? &ScaleGroup<bits, false, true> : &ScaleGroup<bits, false, false>;
}

// The products of one row of A with the quads of a group, as 32-bit sums of columns 0 to 7 and 8 to 15.
template <int bits>
inline void SumOneRow(const int8_t* a, const uint8_t* stored, int64_t quads, __m256i (&columns)[2]) {
  __m256i first = _mm256_setzero_si256(), last = first;
  if constexpr (bits == 4) {
    constexpr int64_t kPairs = 8;  // as in AddNibbles
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t q = 0; q < quads;) {
      __m256i of_first = _mm256_setzero_si256(), of_last = of_first;
      for (const int64_t end = std::min(quads, q + kPairs); q < end; ++q) {
        const Quad<4> b(stored + q * kQuadBytes<4>);
        const __m256i of_row = Broadcast(a + 4 * q);
        of_first = _mm256_add_epi16(of_first, _mm256_maddubs_epi16(b.first, of_row));
        of_last = _mm256_add_epi16(of_last, _mm256_maddubs_epi16(b.last, of_row));
      }
      first = _mm256_add_epi32(first, _mm256_madd_epi16(of_first, ones));
      last = _mm256_add_epi32(last, _mm256_madd_epi16(of_last, ones));
    }
    columns[0] = _mm256_permute2x128_si256(first, last, 0x20);
    columns[1] = _mm256_permute2x128_si256(first, last, 0x31);
  } else {
    for (int64_t q = 0; q < quads; ++q) {
      const Quad<8> b(stored + q * kQuadBytes<8>);
      const __m256i words = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(Broadcast(a + 4 * q)));
      const __m256i pairs[2] = {_mm256_shuffle_epi32(words, 0x00), _mm256_shuffle_epi32(words, 0x55)};
      for (int pair = 0; pair < 2; ++pair) {
        first = _mm256_add_epi32(first, _mm256_madd_epi16(b.first[pair], pairs[pair]));
        last = _mm256_add_epi32(last, _mm256_madd_epi16(b.last[pair], pairs[pair]));
      }
    }
    columns[0] = first;
    columns[1] = last;
  }
}

// One row without a zero point, with the operations of ScaleGroup: the sums of a group stay in registers, whose way
// through memory takes longer than a small group's products.
template <int bits, bool kIntegers, bool kOffset>
void DotOneRow(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  for (int64_t column = 0; column < kPanelColumns; column += kColumns) {
    __m256 total[2];
    for (int half = 0; half < 2; ++half)
      total[half] = scales.first ? _mm256_loadu_ps(scales.first + column + 8 * half) : _mm256_setzero_ps();
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
      __m256i sums[2];
      SumOneRow<bits>(a.values + begin * 4, stored + begin * kQuadBytes<bits> + 2 * column, end - begin, sums);
      const __m256i row_sum = _mm256_set1_epi32(a.sums[g * a.stride]);
      const __m256 row_scale = _mm256_set1_ps(a.scales[g * a.stride]);
      for (int half = 0; half < 2; ++half) {
        const int64_t at = g * scales.stride + column + 8 * half;
        if (bits == 4) sums[half] = _mm256_sub_epi32(sums[half], _mm256_slli_epi32(row_sum, 3));  // 8 is added
        __m256 sum = _mm256_cvtepi32_ps(sums[half]);
        if (kOffset)
          sum = MultiplyAdd<kIntegers>(_mm256_loadu_ps(scales.offset + at), _mm256_cvtepi32_ps(row_sum), sum);
        const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(scales.scale + at), row_scale);
        total[half] = MultiplyAdd<kIntegers>(sum, product, total[half]);
      }
    }
    for (int half = 0; half < 2; ++half) _mm256_storeu_ps(tile + column + 8 * half, total[half]);
  }
}

template <int bits>
RoundedDotFunction SelectDotOneRow(bool integers, bool offset) {
  if (integers) return offset ? &DotOneRow<bits, true, true> : &DotOneRow<bits, true, false>;
  return offset ? &DotOneRow<bits, false, true> : &DotOneRow<bits, false, false>;
}

template <int bits>
void Dot(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  if (a.rows == 1) return SelectDotOneRow<bits>(a.integers, scales.offset != nullptr)(a, stored, scales, tile);
  alignas(32) RowSums sums[kVectorSlivers.rows];
  const auto scale_group = SelectScaleGroup<bits>(a.integers, scales.offset != nullptr);
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
    for (int64_t column = 0; column < kPanelColumns; column += kColumns) {
      std::fill_n(&sums[0][0], a.rows * kColumns, 0);
      for (int64_t q = begin; q < end; q += kChunk)
        AddChunk<bits>(a.rows, a.values + q * a.rows * 4, stored + q * kQuadBytes<bits> + 2 * column,
                       std::min(kChunk, end - q), sums);
      scale_group(a, g, scales, column, sums, tile);
    }
  }
}

}  // namespace

RoundedDotFunction Avx2RoundedDot(int bits) { return bits == 8 ? &Dot<8> : &Dot<4>; }

#else

RoundedDotFunction Avx2RoundedDot(int) { return nullptr; }

#endif

}  // namespace npu::gemm
