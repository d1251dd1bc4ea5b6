#include "ep/kernels/gemm/row_epilogue.h"

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

__attribute__((target("avx512bf16"))) void StoreRows(const RowEpilogue& epilogue, Tile tile) {
  if (epilogue.Rounds(tile)) {
    Bfloat16Rows rows = epilogue.Rounded(tile);
    return rows.Store(static_cast<int>(tile.rows));
  }
  while (tile.rows > 0) epilogue.StoreRow(tile);
}

}  // namespace

void RowEpilogue::Store(const Tile& tile) const {
  const bool gated = epilogue_.gated_columns > 0;  // GateRows takes a call, for which StoreTile has all rows
  !gated&& Takes(tile) ? StoreRows(*this, tile) : StoreTile(tile);
}

#else

void RowEpilogue::Store(const Tile& tile) const { StoreTile(tile); }

#endif

}  // namespace npu::gemm
