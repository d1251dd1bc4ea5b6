// bfloat16, float16 and 8-bit integers through the AMX tile registers: 2 × 2 tiles of 16 × 16 sums, 32 rows of K per
// step, or 64 for integers. Decision 0020 explains what surrounds the products.
#include <algorithm>
#include <type_traits>

#include "ep/kernels/gemm/amx_work.h"
#include "ep/kernels/gemm/split_float16.h"

#if defined(__AVX512F__)
#include "ep/kernels/amx_tiles.h"
#endif

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kRowBytes = kPanelColumns * 4;       // of a stored row of B and of a row of C
constexpr int64_t kStepBytes = kTileRows * kRowBytes;  // of B per tile instruction

// Rows of the finished tile that the epilogue computes by inlined code.
struct ComputedRows {
  const RowEpilogue& epilogue;
  Tile& tile;
  int64_t left() const { return tile.rows; }
  __attribute__((target("avx512bf16"), always_inline)) void Store(int rows) {
    for (; rows > 0 && tile.rows > 0; --rows) epilogue.StoreRow(tile);
  }
};

// Rows that are stored by a call, kEach at a time: a call for each would take longer.
class CalledRows {
 public:
  explicit CalledRows(AmxWork& work) : work_(work) {}
  int64_t left() const { return work_.finished.rows; }
  void Store(int rows) {
    if (due_ >= kEach) {
      work_.StoreFinished(kEach);
      due_ = 0;
    }
    due_ += rows;
  }

 private:
  static constexpr int kEach = 8;
  AmxWork& work_;
  int due_ = kEach;
};

using First = std::integral_constant<int, 0>;  // the number of a tile's first step

// kParts: products of 16 rows of B, each with a chunk of A, that make a step.
template <int kRowTiles, class Dot, int kParts>
__attribute__((target("avx512bf16"))) void AmxTile(const Sliver& sliver, const void* b_panel, AmxWork& work,
                                                   int64_t depth, float* c, bool accumulate) {
  using Block = amx::Sums<kRowTiles, kPanelColumns / kLanes>;
  const char* a = static_cast<const char*>(sliver.data);
  const int64_t a_stride = sliver.row_stride, a_step = sliver.chunk_stride;
  const char* b = static_cast<const char*>(b_panel);
  const int steps = static_cast<int>((depth + Dot::kDepth - 1) / Dot::kDepth);
  PanelStreams streams = work.streams;
  const auto add = [&]() __attribute__((always_inline)) { Block::template Add<Dot>(a, a_stride, b, kRowBytes); };
  const auto first = [&]() __attribute__((always_inline)) {
    if (work.held == nullptr) {
      accumulate ? Block::LoadFrom(c, kRowBytes) : Block::Clear();
      add();
    } else if (!accumulate) {
      Block::template AddFirst<Dot, false>(work.held, c, kRowBytes, a, a_stride, b, kRowBytes);
    } else if (work.held != c) {
      Block::template AddFirst<Dot, true>(work.held, c, kRowBytes, a, a_stride, b, kRowBytes);
    } else {
      add();
    }
  };
  const auto step = [&](auto k) __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part) {
      std::is_same_v<decltype(k), First>&& part == 0 ? first() : add();
      a += a_step;
      b += kStepBytes;
    }
    streams.Step();
    constexpr int kAwake = amx::kAwakeSteps / kParts;
    if (k % kAwake == kAwake - 1) amx::Store<6>(c, kRowBytes);  // the sums are stored over it
  };
  if (work.held_row_tiles != kRowTiles) StoreHeldTiles(work);
  // The tile instructions do not declare which memory they access.
  amx::CompilerBarrier();

  // Rows to store and to prefetch with each step but the first one, which stores the sums of the tile before.
  const int each = (kMaxSliverRows + steps - 2) / std::max(1, steps - 1);
  Prefetch& result = work.result;  // copied, it would wait for the stores of its members: see TileFunction
  const char* sums = reinterpret_cast<const char*>(work.next_sums);
  const char* const sums_end = sums ? sums + kRowTiles * kTileRows * kRowBytes : sums;
  step(First{});
  int k = 1;
  // Steps with as much other work as has to be done: `rows` stores those of the tile before.
  const auto busy_steps = [&](auto& rows) __attribute__((target("avx512bf16"), always_inline)) {
    for (; k < steps && (rows.left() > 0 || result.result_rows > 0 || sums != sums_end); ++k) {
      step(k);
      amx::CompilerBarrier();
      rows.Store(each);
      amx::CompilerBarrier();
      for (int i = 0; i < each; ++i) result.ResultRow();
      for (int i = 0; i < 2 * each && sums != sums_end; ++i, sums += 64) __builtin_prefetch(sums, 1);
    }
  };
  if (work.epilogue->Rounds(work.finished)) {
    Bfloat16Rows rows = work.epilogue->Rounded(work.finished);
    busy_steps(rows);
    rows.LeaveRest(work.finished);
  } else if (work.epilogue->Takes(work.finished)) {
    ComputedRows rows{*work.epilogue, work.finished};
    busy_steps(rows);
  } else {
    CalledRows rows(work);
    busy_steps(rows);
  }
  for (; k < steps; ++k) step(k);
  amx::CompilerBarrier();
  work.held = c;
  work.held_row_tiles = kRowTiles;
  work.streams = streams;
}

template <class Dot, int kParts = 1>
MicroKernel MakeAmxKernel(SliverFormat format) {
  MicroKernel kernel{.sliver_format = format,
                     .sliver_rows = 2 * kTileRows,
                     .row_multiple = kTileRows,
                     .depth_multiple = Dot::kDepth,
                     .rows_per_panel = 256,
                     .chunk_depth = 18 / kParts * Dot::kDepth,  // 36 KB of B
                     .group_slivers = 4};
  kernel.amx_functions[kTileRows] = &AmxTile<1, Dot, kParts>;
  kernel.amx_functions[2 * kTileRows] = &AmxTile<2, Dot, kParts>;
  return kernel;
}

}  // namespace

const MicroKernel* AmxKernel(DType dtype, PanelFormat format) {
  static const MicroKernel bfloat16 = MakeAmxKernel<amx::DotBf16>(SliverFormat::kHalves);
  static const MicroKernel float16 = MakeAmxKernel<amx::DotFp16>(SliverFormat::kHalves);
  static const MicroKernel split = MakeAmxKernel<amx::DotBf16, kSplitParts>(SliverFormat::kSplitFloat16);
  static const MicroKernel int8 = MakeAmxKernel<amx::DotInt8>(SliverFormat::kBytes);
  static const MicroKernel uint8 = MakeAmxKernel<amx::DotUInt8Int8>(SliverFormat::kBytes);
  if (format == PanelFormat::kPairs && Features().amx_bf16) return &bfloat16;
  if (format == PanelFormat::kPairsFloat16 && Features().amx_fp16) return &float16;
  if (format == PanelFormat::kSplitFloat16 && Features().amx_bf16 && Features().avx512_bf16) return &split;
  if (format == PanelFormat::kQuads && Features().amx_int8) return dtype == DType::kUInt8 ? &uint8 : &int8;
  return nullptr;
}

void StoreHeldTiles(AmxWork& work) {
  if (work.held == nullptr) return;
  amx::CompilerBarrier();
  work.held_row_tiles == 1 ? amx::Sums<1, 2>::StoreTo(work.held, kRowBytes)
                           : amx::Sums<2, 2>::StoreTo(work.held, kRowBytes);
  amx::CompilerBarrier();
  work.held = nullptr;
}

ScopedTiles::ScopedTiles(const MicroKernel& kernel, int64_t rows) : active_(kernel.uses_tiles()) {
  if (active_) amx::ConfigureTiles(static_cast<int>(rows));
}
ScopedTiles::~ScopedTiles() {
  if (active_) amx::Release();
}

#else

const MicroKernel* AmxKernel(DType, PanelFormat) { return nullptr; }
void StoreHeldTiles(AmxWork&) {}
ScopedTiles::ScopedTiles(const MicroKernel&, int64_t) : active_(false) {}
ScopedTiles::~ScopedTiles() = default;

#endif

}  // namespace npu::gemm
