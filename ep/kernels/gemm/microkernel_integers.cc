// 8-bit integers, four rows of K per stored row, summed exactly in int32, for machines without AVX-512's instruction
// for it.
#include <utility>

#include "ep/kernels/gemm/dot_products.h"
#include "ep/kernels/gemm/microkernel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace npu::gemm {

namespace {

#if defined(__AVX2__)

#if defined(__AVX512BW__)
using Words = __m512i;
inline Words Load(const void* p) { return _mm512_load_si512(p); }
inline void Store(void* p, Words v) { _mm512_store_si512(p, v); }
inline Words Broadcast(int x) { return _mm512_set1_epi32(x); }
inline Words Add(Words a, Words b) { return _mm512_add_epi32(a, b); }
inline Words SumsOfPairs(Words a, Words b) { return _mm512_madd_epi16(a, b); }
inline Words ShiftLeft(Words v) { return _mm512_slli_epi16(v, 8); }
inline Words ShiftRight(Words v, bool is_unsigned) {
  return is_unsigned ? _mm512_srli_epi16(v, 8) : _mm512_srai_epi16(v, 8);
}
constexpr int kIntegerRows = 8, kWordRows = 12;
#else
using Words = __m256i;
inline Words Load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
inline void Store(void* p, Words v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
inline Words Broadcast(int x) { return _mm256_set1_epi32(x); }
inline Words Add(Words a, Words b) { return _mm256_add_epi32(a, b); }
inline Words SumsOfPairs(Words a, Words b) { return _mm256_madd_epi16(a, b); }
inline Words ShiftLeft(Words v) { return _mm256_slli_epi16(v, 8); }
inline Words ShiftRight(Words v, bool is_unsigned) {
  return is_unsigned ? _mm256_srli_epi16(v, 8) : _mm256_srai_epi16(v, 8);
}
constexpr int kIntegerRows = 4;  // 8 sums, 4 operands from B and 2 from A in 16 registers
constexpr int kWordRows = 4;     // 8 sums, two vectors of B, and what is multiplied
constexpr int kDotRows = 6;      // 12 sums, two vectors of B and one of A

// Of AVX-VNNI: unsigned bytes of A, signed ones of B.
struct Dots {
  Words bytes;
};
inline Words AddProducts(Words sum, Dots b, Dots a) {
  AddDotOfBytes(sum, a.bytes, b.bytes);
  return sum;
}
struct DotElements {
  static constexpr int kDepth = 4;
  static constexpr SliverFormat kFormat = SliverFormat::kUnsignedBytes;
  static Dots Left(Words bytes) { return {bytes}; }
  static Dots Right(Words bytes) { return {bytes}; }
};
#endif

// Bytes as 16-bit integers, those at even positions and those at odd ones: then the sum of two products is exact, which
// that of VPMADDUBSW is not.
struct Quads {
  Words even, odd;
  Quads(Words bytes, bool is_unsigned)
      : even(ShiftRight(ShiftLeft(bytes), is_unsigned)), odd(ShiftRight(bytes, is_unsigned)) {}
};
inline Words AddProducts(Words sum, const Quads& b, const Quads& a) {
  return Add(sum, Add(SumsOfPairs(b.even, a.even), SumsOfPairs(b.odd, a.odd)));
}
inline Words AddProducts(Words sum, Words b, Words a) { return Add(sum, SumsOfPairs(b, a)); }

// What is stored as words: two rows of K per stored row, which nothing has to be split for.
struct WordElements {
  static constexpr int kDepth = 2;
  static constexpr SliverFormat kFormat = SliverFormat::kWords;
  static Words Left(Words words) { return words; }
  static Words Right(Words words) { return words; }
};

#else

using Words = VecI32;
inline Words Load(const void* p) { return *static_cast<const Words*>(p); }
inline void Store(void* p, Words v) { *static_cast<Words*>(p) = v; }
inline Words Broadcast(int x) { return Words{} + x; }
inline Words Add(Words a, Words b) { return (Words)((VecU32)a + (VecU32)b); }  // wraps
constexpr int kIntegerRows = 4;

struct Quads {
  Words element[4];
  Quads(Words bytes, bool is_unsigned) {
    for (int i = 0; i < 4; ++i) {
      const VecU32 high = (VecU32)bytes << (24 - 8 * i);
      element[i] = is_unsigned ? (Words)(high >> 24) : (Words)high >> 24;
    }
  }
};
inline Words AddProducts(Words sum, const Quads& b, const Quads& a) {
  for (int i = 0; i < 4; ++i) sum = Add(sum, b.element[i] * a.element[i]);
  return sum;
}

#endif

template <bool kUnsignedLeft>
struct ByteElements {
  static constexpr int kDepth = 4;
  static constexpr SliverFormat kFormat = SliverFormat::kBytes;
  static Quads Left(Words bytes) { return Quads(bytes, kUnsignedLeft); }
  static Quads Right(Words bytes) { return Quads(bytes, false); }
};

template <class Elements, int kRows>
void IntegerTile(const Sliver& sliver, const void* b_panel, const Prefetch& ahead, int64_t depth, float* tile,
                 bool accumulate) {
  Prefetch prefetch = ahead;
  constexpr int kChunk = 16;  // steps along a row in one chunk
  RowPointers<kRows> a(sliver);
  const char* b = static_cast<const char*>(b_panel);
  Words sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = accumulate ? Load(tile + r * kPanelColumns) : Broadcast(0);
    sum[r][1] = accumulate ? Load(tile + r * kPanelColumns + kLanes) : Broadcast(0);
  }
  constexpr int kDepth = Elements::kDepth;
  for (int64_t left = (depth + kDepth - 1) / kDepth; left > 0; left -= kChunk, a.Advance(sliver.chunk_stride)) {
    const int steps = left < kChunk ? static_cast<int>(left) : kChunk;
    prefetch.Chunk();
    // With one in turn the compiler copies every sum.
#pragma GCC unroll 2
    for (int s = 0; s < steps; ++s) {
      prefetch.Row<kPanelColumns * 4>();
      const auto low = Elements::Right(Load(b)), high = Elements::Right(Load(b + kLanes * 4));
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const auto of_row = Elements::Left(Broadcast(a.template Read<int>(r, s * 4)));
        sum[r][0] = AddProducts(sum[r][0], low, of_row);
        sum[r][1] = AddProducts(sum[r][1], high, of_row);
      }
      b += kPanelColumns * 4;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    Store(tile + r * kPanelColumns, sum[r][0]);
    Store(tile + r * kPanelColumns + kLanes, sum[r][1]);
  }
}

template <class Elements, int... kRows>
MicroKernel MakeIntegerKernel(std::integer_sequence<int, kRows...>) {
  return {.sliver_format = Elements::kFormat,
          .sliver_rows = sizeof...(kRows),
          .row_multiple = 1,
          .depth_multiple = Elements::kDepth,
          .rows_per_panel = 48,
          .functions = {nullptr, &IntegerTile<Elements, kRows + 1>...}};
}

}  // namespace

const MicroKernel& IntegerKernel(bool unsigned_a) {
  using Rows = std::make_integer_sequence<int, kIntegerRows>;
  static const MicroKernel signed_left = MakeIntegerKernel<ByteElements<false>>(Rows{});
  static const MicroKernel unsigned_left = MakeIntegerKernel<ByteElements<true>>(Rows{});
  return unsigned_a ? unsigned_left : signed_left;
}

#if defined(__AVX2__) && !defined(__AVX512F__)

const MicroKernel* IntegerDotKernel(DType) {
  static const MicroKernel kernel = MakeIntegerKernel<DotElements>(std::make_integer_sequence<int, kDotRows>{});
  return Features().avx_vnni ? &kernel : nullptr;
}

#elif !defined(__AVX512F__) && !defined(__aarch64__)  // microkernel_dot.cc, microkernel_neon.cc

const MicroKernel* IntegerDotKernel(DType) { return nullptr; }

#endif

#if defined(__AVX2__)

const MicroKernel* WordKernel() {
  static const MicroKernel kernel = MakeIntegerKernel<WordElements>(std::make_integer_sequence<int, kWordRows>{});
  return &kernel;
}

void WidenQuads(const void* quads, int64_t depth, void* out) {
  constexpr int64_t kColumns = 8;  // at a time
  const auto* from = static_cast<const __m256i*>(quads);
  auto* to = static_cast<__m256i*>(out);
  constexpr int64_t kVectors = kPanelColumns / kColumns;
  // In each half the first two rows of K of four columns, then the last two.
  const __m256i pairs =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  constexpr int kFirstPairsFirst = 0xd8;
  for (int64_t row = 0; row < (depth + 3) / 4; ++row, to += 2 * kVectors)
    for (int64_t v = 0; v < kVectors; ++v, ++from) {
      const __m256i halves = _mm256_shuffle_epi8(_mm256_load_si256(from), pairs);
      const __m256i both = _mm256_permute4x64_epi64(halves, kFirstPairsFirst);
      _mm256_store_si256(to + v, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(both)));
      _mm256_store_si256(to + kVectors + v, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(both, 1)));
    }
}

#else

const MicroKernel* WordKernel() { return nullptr; }
void WidenQuads(const void*, int64_t, void*) {}

#endif

}  // namespace npu::gemm
