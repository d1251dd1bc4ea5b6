// bfloat16, float16 and 8-bit integers through the AMX tile registers: 2 × 2 tiles of 16 × 16 sums, 32 rows of K per
// step, or 64 for integers.
#include "ep/kernels/gemm/microkernel.h"

#if defined(__AVX512F__)
#include "ep/kernels/amx_tiles.h"
#endif

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kRowBytes = kPanelColumns * 4;       // of a stored row of B and of a row of C
constexpr int64_t kStepBytes = kTileRows * kRowBytes;  // of B per tile instruction

template <int kRowTiles, class Dot>
void AmxTile(const Sliver& sliver, const void* b_panel, Prefetch prefetch, int64_t depth, float* c, bool accumulate) {
  using Block = amx::Sums<kRowTiles, kPanelColumns / kLanes>;
  const char* a = static_cast<const char*>(sliver.data);
  const char* b = static_cast<const char*>(b_panel);
  // The tile instructions do not declare which memory they access.
  amx::CompilerBarrier();
  if (accumulate) {
    Block::LoadFrom(c, kRowBytes);
  } else {
    Block::Clear();
  }
  for (int64_t k = 0; k < depth; k += Dot::kDepth) {
    const char* const prefetch_end = prefetch.data + kStepBytes / kRowBytes * prefetch.step;
    for (; prefetch.data < prefetch_end; prefetch.data += 64) __builtin_prefetch(prefetch.data, 0, 2);
    Block::template Add<Dot, /*kStreaming=*/true>(a, sliver.row_stride, b, kRowBytes);
    a += sliver.chunk_stride;
    b += kStepBytes;
  }
  Block::StoreTo(c, kRowBytes);
  amx::CompilerBarrier();
}

template <class Dot>
MicroKernel MakeAmxKernel(SliverFormat format) {
  MicroKernel kernel{.sliver_format = format,
                     .sliver_rows = 2 * kTileRows,
                     .row_multiple = kTileRows,
                     .depth_multiple = Dot::kDepth,
                     .rows_per_panel = 384,
                     .functions = {}};
  kernel.functions[kTileRows] = &AmxTile<1, Dot>;
  kernel.functions[2 * kTileRows] = &AmxTile<2, Dot>;
  return kernel;
}

}  // namespace

const MicroKernel* AmxKernel(DType dtype, PanelFormat format) {
  static const MicroKernel bfloat16 = MakeAmxKernel<amx::DotBf16>(SliverFormat::kHalves);
  static const MicroKernel float16 = MakeAmxKernel<amx::DotFp16>(SliverFormat::kHalves);
  static const MicroKernel int8 = MakeAmxKernel<amx::DotInt8>(SliverFormat::kBytes);
  static const MicroKernel uint8 = MakeAmxKernel<amx::DotUInt8Int8>(SliverFormat::kBytes);
  if (format == PanelFormat::kPairs && Features().amx_bf16) return &bfloat16;
  if (format == PanelFormat::kPairsFloat16 && Features().amx_fp16) return &float16;
  if (format == PanelFormat::kQuads && Features().amx_int8) return dtype == DType::kUInt8 ? &uint8 : &int8;
  return nullptr;
}

ScopedTiles::ScopedTiles(const MicroKernel& kernel) : active_(kernel.row_multiple == kTileRows) {
  if (active_) amx::ConfigureFullTiles();
}
ScopedTiles::~ScopedTiles() {
  if (active_) amx::Release();
}

#else

const MicroKernel* AmxKernel(DType, PanelFormat) { return nullptr; }
ScopedTiles::ScopedTiles(const MicroKernel&) : active_(false) {}
ScopedTiles::~ScopedTiles() = default;

#endif

}  // namespace npu::gemm
