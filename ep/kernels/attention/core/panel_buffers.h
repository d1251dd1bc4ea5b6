// The memory of an item of many rows (panel_base.h), laid out in a thread's scratch.
#pragma once

#include <algorithm>

#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

inline constexpr int kPanelVectors = 2;
// Tiles multiply blocks of so many keys, or columns of values, by the queries of a panel.
inline constexpr int kTileKeys = 32;

// The keys [first, last) that the rows of a panel see: those that some row sees, and those that every row sees.
struct PanelKeys {
  int64_t some_first = INT32_MAX, some_last = 0;
  int64_t all_first = 0, all_last = INT32_MAX;
};

template <class Math, int kVectors>
struct PanelBuffers {
  static constexpr int kWidth = kVectors * kLanes;
  static constexpr int kKeyStep = Math::kTiles ? kTileKeys : 4;  // keys are processed in groups of this size

  PanelBuffers(const Problem& p, int64_t max_rows, void* scratch) : carver(scratch) {
    words = (p.head_size + p.rope_size + Math::kElements - 1) / Math::kElements;
    padded_words = RoundUp(words, kLanes);
    // Not a power of two, so that the rows of a tile do not map to the same cache sets.
    key_stride = padded_words + kLanes;
    value_stride = RoundUp(p.value_size, Math::kTiles ? kTileKeys : kLanes);
    const int64_t row_size = p.head_size + p.rope_size + p.value_size;
    key_block = row_size <= 256 ? 128 : 64;
    // Tiles multiply so fast that rescaling and loading the sums for each block shows, unless rows are short. Under a
    // mask a page table need not have pages for blocks that no row sees, and contiguous rows give the same bits as
    // pages.
    if (Math::kTiles && row_size > 128 && p.mask == nullptr) key_block *= 2;
    const int64_t panels = (max_rows + kWidth - 1) / kWidth;
    keys = carver.Take<float>(key_block * key_stride);
    column_stride = key_block / 2 + kLanes;
    if (Math::kTiles) {
      columns = carver.Take<float>(value_stride * column_stride);
      for (float*& chunk : chunks) chunk = carver.Take<float>(kTileKeys * kWidth);
      for (float*& of_part : weights) of_part = carver.Take<float>(key_block / 2 * kWidth);
      if (p.dropout.active()) dropout = carver.Take<float>(key_block * kWidth);
    } else {
      values = carver.Take<float>(key_block * value_stride);
      scores = carver.Take<float>(key_block * kWidth);
    }
    bias = carver.Take<float>(key_block * kWidth);
    bias_rows = carver.Take<float>(key_block * kLanes);
    rows = carver.Take<float>(kLanes * std::max(padded_words, value_stride));
    queries = carver.Take<float>(panels * padded_words * kWidth);
    sums = carver.Take<float>(panels * value_stride * kWidth);
    max = carver.Take<float>(panels * kWidth);
    if (Math::kTiles && p.row_max != nullptr) true_max = carver.Take<float>(panels * kWidth);
    sum = carver.Take<float>(panels * kWidth);
    first_key = carver.Take<int32_t>(panels * kWidth);
    last_key = carver.Take<int32_t>(panels * kWidth);
    seen = carver.Take<PanelKeys>(panels);
  }

  Carver carver;
  int64_t words, padded_words, key_stride, value_stride, key_block, column_stride;
  float *keys, *bias;  // [key_block][key_stride]; [key_block][kWidth]
  // Without tiles:
  float* values = nullptr;  // [key_block / kElements][value_stride] words
  float* scores = nullptr;  // [key_block][kWidth]
  // With tiles:
  float* columns = nullptr;       // [value_stride][column_stride]: the values transposed
  float* chunks[3] = {};          // [kTileKeys][kWidth]: scores that are read, that are computed, and none
  float* weights[2] = {};         // [key_block / 2][kWidth] words: of a panel and of the one before
  float* dropout = nullptr;       // [key_block][kWidth]
  float *bias_rows, *rows;        // [kLanes][key_block]; [kLanes][...]
  float *queries, *sums;          // per panel [words][kWidth]; [value_stride][kWidth]
  float *max, *sum;               // per panel [kWidth]
  float* true_max = nullptr;      // likewise, for tiles, whose weights are relative to another number
  int32_t *first_key, *last_key;  // per panel [kWidth]: the keys [first, last) that the row of this lane sees
  PanelKeys* seen;                // per panel
};

NPU_SIMD_INLINE void TransposeTo(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Vec block[kLanes];
  for (int i = 0; i < kLanes; ++i) block[i] = Load(from + i * from_stride);
  Transpose(block);
  for (int i = 0; i < kLanes; ++i) Store(to + i * to_stride, block[i]);
}

}  // namespace npu::attention
