// What the micro-kernel of tile registers does besides multiplying: most of a product's other work fits between the
// instructions of its tiles.
#pragma once

#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/panel_streams.h"
#include "ep/kernels/gemm/row_epilogue.h"

namespace npu::gemm {

struct AmxWork {
  const RowEpilogue* epilogue = nullptr;
  // Rows of the tile computed last that are not stored to C yet. They are stored with the steps of the next tile: what
  // tile registers have just stored cannot be loaded immediately, and the vector unit has time.
  Tile finished = {};
  PanelStreams streams = {};         // the panel that follows, with every step
  Prefetch result = {};              // rows of C that the current tile will be stored to
  const float* next_sums = nullptr;  // of the tile after this one, which is added to them; null if they are not kept
  // Where the sums belong that the tile registers still hold, those of the tile computed last, and of how many times 16
  // rows they are. The next tile stores them, register by register (Sums::AddFirst).
  float* held = nullptr;
  int held_row_tiles = 0;

  // Stores at most `rows` rows of `finished`, by a call.
  void StoreFinished(int64_t rows) {
    if (finished.rows == 0) return;
    Tile some = finished;
    some.rows = rows < finished.rows ? rows : finished.rows;
    epilogue->StoreTile(some);
    finished.sums += some.rows * kPanelColumns;
    finished.m0 += some.rows;
    finished.rows -= some.rows;
  }
};

// Stores the sums that the tile registers hold.
void StoreHeldTiles(AmxWork& work);

}  // namespace npu::gemm
