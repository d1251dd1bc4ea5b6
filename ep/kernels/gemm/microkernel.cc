#include "ep/kernels/gemm/microkernel.h"

#include <bit>
#include <cstring>
#include <utility>

#include "ep/kernels/convert.h"

namespace npu::gemm {

namespace {

// How rows of a panel are loaded as vectors of floats. kDepth: rows of K in one stored row.
struct Float32Panel {
  using Element = float;
  static constexpr int kDepth = 1;
  static constexpr int kRowElements = kPanelColumns;
  static void Load(const float* b, int /*k*/, Vec& low, Vec& high) {
    low = reinterpret_cast<const Vec*>(b)[0];
    high = reinterpret_cast<const Vec*>(b)[1];
  }
};

struct Float16Panel {
  using Element = uint16_t;
  static constexpr int kDepth = 1;
  static constexpr int kRowElements = kPanelColumns;
  static Vec Upcast(const uint16_t* b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(b)));
#elif defined(__F16C__)
    return (Vec)_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(b)));
#elif defined(__aarch64__)
    return (Vec)vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(b)));
#else
    Vec out;
    for (int i = 0; i < kLanes; ++i) out[i] = internal::HalfToFloat(b[i]);
    return out;
#endif
  }
  static void Load(const uint16_t* b, int /*k*/, Vec& low, Vec& high) {
    low = Upcast(b);
    high = Upcast(b + kLanes);
  }
};

struct BFloat16Panel {
  using Element = uint32_t;  // a pair
  static constexpr int kDepth = 2;
  static constexpr int kRowElements = kPanelColumns;
  static void Load(const uint32_t* b, int k, Vec& low, Vec& high) {
    const VecU32* v = reinterpret_cast<const VecU32*>(b);
    low = k == 0 ? (Vec)(v[0] << 16) : (Vec)(v[0] & 0xffff0000u);
    high = k == 0 ? (Vec)(v[1] << 16) : (Vec)(v[1] & 0xffff0000u);
  }
};

// kVectors: of each row of the panel, from its first on. All loops over sums are unrolled, and one loop alone is not:
// the sums are then in registers from beginning to end.
template <class Panel, int kRows, int kVectors>
void FloatTile(const Sliver& sliver, const void* b_panel, const Prefetch& ahead, int64_t depth, float* tile,
               bool accumulate) {
  constexpr int kChunk = 16 / Panel::kDepth;  // stored rows of B for one chunk of A
  // Few rows have too few independent sums to hide the latency of a multiply-add: each row then has several.
  constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;
  Prefetch prefetch = ahead;
  RowPointers<kRows> a(sliver);
  const auto* b = static_cast<const typename Panel::Element*>(b_panel);
  Vec* c = reinterpret_cast<Vec*>(tile);
  int64_t left = (depth + Panel::kDepth - 1) / Panel::kDepth;

  Vec sum[kChains][kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[chain][r][v] = Vec{};
    }
  }
  while (left > 0) {
    const int steps = left < kChunk ? static_cast<int>(left) : kChunk;
    prefetch.Chunk();
    for (int s = 0; s < steps; s += kChains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        if (chain != 0 && s + chain >= steps) break;
        prefetch.Row<Panel::kRowElements* static_cast<int>(sizeof(typename Panel::Element))>();
#pragma GCC unroll 2
        for (int k = 0; k < Panel::kDepth; ++k) {
          Vec of_panel[2];
          Panel::Load(b, k, of_panel[0], of_panel[1]);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const int64_t at = (s + chain) * Panel::kDepth + k;
            const float x = a.template Read<float>(r, at * static_cast<int64_t>(sizeof(float)));
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) sum[chain][r][v] += x * of_panel[v];
          }
        }
        b += Panel::kRowElements;
      }
    }
    left -= steps;
    a.Advance(sliver.chunk_stride);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int chain = 1; chain < kChains; ++chain) sum[0][r][v] += sum[chain][r][v];
      // Each block of K is summed separately: a single running sum over a long K would lose small terms to rounding.
      c[2 * r + v] = accumulate ? c[2 * r + v] + sum[0][r][v] : sum[0][r][v];
    }
  }
}

template <class Panel, int... kRows>
MicroKernel MakeFloatKernel(std::integer_sequence<int, kRows...>) {
  return {.sliver_format = SliverFormat::kFloat32,
          .sliver_rows = kSliverRows,
          .row_multiple = 1,
          .depth_multiple = Panel::kDepth,
          .rows_per_panel = 48,
          .functions = {nullptr, &FloatTile<Panel, kRows + 1, 2>...},
          .half_functions = {nullptr, &FloatTile<Panel, kRows + 1, 1>...}};
}

}  // namespace

const MicroKernel* FloatKernel(PanelFormat format) {
  using Rows = std::make_integer_sequence<int, kSliverRows>;
  static const MicroKernel float32 = MakeFloatKernel<Float32Panel>(Rows{});
  static const MicroKernel float16 = MakeFloatKernel<Float16Panel>(Rows{});
  static const MicroKernel bfloat16 = MakeFloatKernel<BFloat16Panel>(Rows{});
  switch (format) {
    case PanelFormat::kFloat32:
      return &float32;
    case PanelFormat::kFloat16:
      return &float16;
    case PanelFormat::kPairs:
      return &bfloat16;
    case PanelFormat::kPairsFloat16:
    case PanelFormat::kQuads:
    case PanelFormat::kSplitFloat16:
    case PanelFormat::kWords:
      return nullptr;
  }
  return nullptr;
}

const MicroKernel& SelectKernel(DType dtype, PanelFormat format, int64_t m) {
  // Vectors multiply so many rows as fast as panels are read. With four rows the dot product of pairs takes 1.2 to 1.8
  // times as long as tiles; that of integers multiplies twice as many at a time.
  const int64_t few_rows = format == PanelFormat::kQuads ? 4 : 2;
  // For fewer rows splitting a panel takes as long as multiplying it as floats.
  constexpr int64_t kSplitRows = 24;
  if (format == PanelFormat::kFloat16 && m >= kSplitRows) {
    if (const MicroKernel* split = AmxKernel(dtype, PanelFormat::kSplitFloat16)) return *split;
  }
  const MicroKernel* amx = AmxKernel(dtype, format);
  const MicroKernel* vectors = format == PanelFormat::kPairs   ? Bf16Kernel()
                               : format == PanelFormat::kQuads ? IntegerDotKernel(dtype)
                                                               : nullptr;
  if (amx && (m > few_rows || !vectors)) return *amx;
  if (vectors) return *vectors;
  return format == PanelFormat::kQuads ? IntegerKernel(dtype == DType::kUInt8) : *FloatKernel(format);
}

const MicroKernel& SelectProductKernel(DType dtype, PanelFormat format, int64_t m) {
  const MicroKernel& kernel = SelectKernel(dtype, format, m);
  const MicroKernel* words = WordKernel();
  // For a single sliver widening a panel takes longer than splitting its bytes while they are multiplied.
  const bool widens = words && m > kernel.sliver_rows && &kernel == &IntegerKernel(dtype == DType::kUInt8);
  return widens ? *words : kernel;
}

}  // namespace npu::gemm
