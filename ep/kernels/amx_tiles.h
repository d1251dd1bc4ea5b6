// The tile instructions, as assembly: gcc 12's intrinsics declare only 8 bytes as the operand of _tile_loadconfig, so
// that stores to the rest of the configuration may be eliminated, and lack AMX-FP16.
//
// The assembly does not declare which memory it accesses (a strided region has no operand): put CompilerBarrier()
// between plain stores and Load, and between Store and plain loads.
#pragma once

#include <cstdint>

namespace npu::amx {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

inline void CompilerBarrier() { asm volatile("" ::: "memory"); }

// Configures all eight tiles as rows of 64 bytes, for the calling thread: 16 rows, but those of the left operand and of
// the sums of a block of Sums, whose rows are `rows`, 1 to 32. What is loaded, multiplied and stored is less by as
// much.
inline void ConfigureTiles(int rows) {
  constexpr int kRows = 16;
  const int upper = rows < kRows ? rows : kRows, lower = rows > kRows ? rows - kRows : kRows;
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i >= 6 ? kRows : i == 2 || i == 3 || i == 5 ? lower : upper);
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
}
inline void ConfigureFullTiles() { ConfigureTiles(32); }
inline void Release() { asm volatile("tilerelease"); }

// Owns the calling thread's tiles while in scope. Use one around each use rather than one per thread: another library
// in the process (oneDNN does) may release the tiles of a shared thread.
class Scope {
 public:
  Scope() { ConfigureFullTiles(); }
  ~Scope() { Release(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

template <int kTile>
void Zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
void Load(const void* base, int64_t row_stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(row_stride_bytes), "i"(kTile));
}
// For operands that stay in the L2 cache: hints not to fill L1 with them.
template <int kTile>
void LoadStreaming(const void* base, int64_t row_stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(row_stride_bytes), "i"(kTile));
}
template <int kTile>
void Store(void* base, int64_t row_stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(row_stride_bytes), "i"(kTile));
}

// The unit that stores tiles goes to sleep when it has stored none for some 2000 cycles, that is 30 steps of four
// products, and takes 700 to wake, while no other tile instruction proceeds. So a tile is stored every kAwakeSteps
// steps, needed or not.
inline constexpr int kAwakeSteps = 8;

// Run<c, a, b>: tile c += tile a * tile b, of kDepth columns of a and rows of b.
struct DotBf16 {
  static constexpr int kDepth = 32;
  template <int kC, int kA, int kB>
  static void Run() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct DotFp16 {
  static constexpr int kDepth = 32;
  // tdpfp16ps, spelt in bytes for assemblers older than AMX-FP16:
  // VEX.128.F2.0F38.W0 5C /r with ModRM.reg = c, ModRM.rm = a, VEX.vvvv = b.
  template <int kC, int kA, int kB>
  static void Run() {
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"(((~kB & 15) << 3) | 3), "i"(0xc0 | (kC << 3) | kA));
  }
};

// Int32 sums, which wrap.
struct DotInt8 {
  static constexpr int kDepth = 64;
  template <int kC, int kA, int kB>
  static void Run() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct DotUInt8Int8 {
  static constexpr int kDepth = 64;
  template <int kC, int kA, int kB>
  static void Run() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

// A block of kRowTiles × kColumnTiles sums, each 16 × 16 floats, in tiles 0 to 3: row r and column c is tile 2 r + c.
// Blocks in memory are rows of floats, `row_stride` apart. Strides are in bytes.
template <int kRowTiles, int kColumnTiles>
struct Sums {
  static_assert(kRowTiles >= 1 && kRowTiles <= 2 && kColumnTiles >= 1 && kColumnTiles <= 2);

  static void Clear() {
    Zero<0>();
    if constexpr (kColumnTiles == 2) Zero<1>();
    if constexpr (kRowTiles == 2) {
      Zero<2>();
      if constexpr (kColumnTiles == 2) Zero<3>();
    }
  }
  static void LoadFrom(const float* block, int64_t row_stride) {
    amx::Load<0>(block, row_stride);
    if constexpr (kColumnTiles == 2) amx::Load<1>(block + 16, row_stride);
    if constexpr (kRowTiles == 2) {
      const float* lower = block + 4 * row_stride;  // 16 rows down
      amx::Load<2>(lower, row_stride);
      if constexpr (kColumnTiles == 2) amx::Load<3>(lower + 16, row_stride);
    }
  }
  static void StoreTo(float* block, int64_t row_stride) {
    amx::Store<0>(block, row_stride);
    if constexpr (kColumnTiles == 2) amx::Store<1>(block + 16, row_stride);
    if constexpr (kRowTiles == 2) {
      float* lower = block + 4 * row_stride;
      amx::Store<2>(lower, row_stride);
      if constexpr (kColumnTiles == 2) amx::Store<3>(lower + 16, row_stride);
    }
  }
  // Begins the next block of sums, with the first step of its products: from zero or, with kFromMemory, from what
  // `block` holds. Each tile of the block before is stored to `before` where the next block needs it: its last product
  // is three products old by then. Storing all four at the end of a block waits for that block's last product, and no
  // other tile instruction passes a store: 60 cycles.
  template <class Dot, bool kFromMemory>
  static void AddFirst(float* before, const float* block, int64_t row_stride, const char* left, int64_t left_stride,
                       const char* right, int64_t right_stride) {
    LoadOperands(left, left_stride, right, right_stride);
    Exchange<0, kFromMemory>(before, block, row_stride);
    Dot::template Run<0, 4, 6>();
    if constexpr (kColumnTiles == 2) {
      Exchange<1, kFromMemory>(before + 16, block + 16, row_stride);
      Dot::template Run<1, 4, 7>();
    }
    if constexpr (kRowTiles == 2) {
      const int64_t lower = 4 * row_stride;  // floats, to 16 rows down
      Exchange<2, kFromMemory>(before + lower, block + lower, row_stride);
      Dot::template Run<2, 5, 6>();
      if constexpr (kColumnTiles == 2) {
        Exchange<3, kFromMemory>(before + lower + 16, block + lower + 16, row_stride);
        Dot::template Run<3, 5, 7>();
      }
    }
  }
  // += left, [row][64 bytes along the summed axis], times right, [pair along that axis][column], through tiles 4 to 7.
  template <class Dot>
  static void Add(const char* left, int64_t left_stride, const char* right, int64_t right_stride) {
    LoadOperands(left, left_stride, right, right_stride);
    Dot::template Run<0, 4, 6>();
    if constexpr (kColumnTiles == 2) Dot::template Run<1, 4, 7>();
    if constexpr (kRowTiles == 2) {
      Dot::template Run<2, 5, 6>();
      if constexpr (kColumnTiles == 2) Dot::template Run<3, 5, 7>();
    }
  }

 private:
  // Left comes from the L2 cache and passes by L1, where right stays. What comes from further away is asked for first.
  static void LoadOperands(const char* left, int64_t left_stride, const char* right, int64_t right_stride) {
    LoadStreaming<4>(left, left_stride);
    if constexpr (kRowTiles == 2) LoadStreaming<5>(left + 16 * left_stride, left_stride);
    amx::Load<6>(right, right_stride);
    if constexpr (kColumnTiles == 2) amx::Load<7>(right + 64, right_stride);
  }
  template <int kTile, bool kFromMemory>
  static void Exchange(float* before, const float* next, int64_t row_stride) {
    amx::Store<kTile>(before, row_stride);
    if constexpr (kFromMemory) {
      amx::Load<kTile>(next, row_stride);
    } else {
      Zero<kTile>();
    }
  }
};

}  // namespace npu::amx
