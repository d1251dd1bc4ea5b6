// A convolution of integers as products of rows (rows.h) and panels of its weight, one group after the other: tiles of
// sums, whose zero points are corrected with the sums of the panels' columns, become results in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/integer/finish.h"
#include "ep/kernels/convolution/integer/rows.h"
#include "ep/kernels/gemm/single_tile.h"

namespace npu::convolution {

// A weight [out, channels of a group, taps] as the right side of products: columns of bytes, those of each group in
// panels of their own, whose rows are the channels of the first tap, then of the next.
struct FilterColumns {
  int64_t groups, out, channels, taps;

  int64_t depth() const { return channels * taps; }
  int64_t panels() const { return gemm::PanelCount(out / groups); }  // of a group
  int64_t count() const { return groups * panels() * gemm::kPanelColumns; }
  gemm::Matrix MatrixOf(const void* columns) const {
    return gemm::Matrix::RowMajor(columns, count(), depth()).Transposed();
  }

  // Writes count() * depth() bytes; columns that fill panels are arbitrary.
  gemm::Matrix Fill(const TensorView& weight, uint8_t* columns) const {
    const int64_t each = out / groups;
    for (int64_t m = 0; m < out; ++m) {
      const uint8_t* from = weight.as<const uint8_t>() + m * depth();
      uint8_t* to = columns + (m / each * panels() * gemm::kPanelColumns + m % each) * depth();
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = 0; c < channels; ++c) to[tap * channels + c] = from[c * taps + tap];
    }
    return MatrixOf(columns);
  }
};

// What a sum lacks, and the zero points of bytes as the micro-kernel reads them.
struct IntegerOffsets {
  uint32_t x_zero;
  const uint32_t* weight_zeros;  // of each output channel, of bytes as panels store them; null: all are 0
  const int32_t* bias;           // of each, or null
};

class IntegerProduct {
 public:
  // `x`: images with channels last, RowReader::Slack bytes behind them, in the form of `kernel`'s slivers.
  // `panels`: of `columns`.
  IntegerProduct(const Taps& taps, int64_t images, const FilterColumns& columns, const gemm::MicroKernel& kernel,
                 bool unsigned_x, const uint8_t* x, const void* panels, const IntegerOffsets& offsets,
                 const IntegerFinish& finish)
      : reader_(taps, columns.groups * columns.channels, columns.groups),
        images_(images),
        image_bytes_(taps.inputs() * columns.groups * columns.channels),
        columns_(columns),
        kernel_(kernel),
        unsigned_x_(unsigned_x),
        x_(x),
        panels_(static_cast<const char*>(panels)),
        offsets_(offsets),
        finish_(finish) {}

  void Run() const {
    const int64_t outputs = finish_.outputs, sliver = kernel_.sliver_rows, threads = NumThreads();
    const int64_t most = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, reader_.pitch()) / sliver) * sliver;
    const int64_t blocks = (outputs + most - 1) / most, slivers = (outputs + sliver - 1) / sliver;
    const int64_t rows = (slivers + blocks - 1) / blocks * sliver;  // of a block
    const int64_t units = images_ * columns_.groups * blocks, panels = columns_.panels();
    // With few blocks, threads share the channels.
    const int64_t parts = units >= threads ? 1 : std::min(panels, (threads + units - 1) / units);
    ParallelFor(units * parts, 1, [&](int64_t begin, int64_t end) {
      gemm::ScopedTiles tiles(kernel_);
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t part = unit % parts, block = unit / parts % blocks, group = unit / parts / blocks;
        const int64_t first = block * rows, stop = std::min(outputs, first + rows);
        if (first < stop)
          RunBlock(group / columns_.groups, group % columns_.groups, first, stop, part * panels / parts,
                   (part + 1) * panels / parts);
      }
    });
  }

 private:
  static constexpr int64_t kBlockBytes = 256 << 10;  // of rows that panels are multiplied with in turn
  static constexpr int64_t kWidth = gemm::kPanelColumns;

  struct Scratch {
    gemm::AlignedBuffer rows, results, row_sums;
    alignas(64) float sums[2][gemm::kMaxSliverRows * kWidth];
    alignas(64) uint32_t added[kWidth];
  };

  void RunBlock(int64_t image, int64_t group, int64_t first, int64_t stop, int64_t panel_begin,
                int64_t panel_end) const {
    static thread_local Scratch scratch;
    const int64_t count = stop - first, depth = columns_.depth(), each = columns_.out / columns_.groups;
    const ByteRows rows = reader_.Read(x_ + image * image_bytes_, group, first, stop,
                                       static_cast<uint8_t>(offsets_.x_zero), scratch.rows);
    const uint32_t* row_sums = offsets_.weight_zeros != nullptr ? SumRows(rows, count, scratch.row_sums) : nullptr;
    const int64_t tiles = (count + kernel_.sliver_rows - 1) / kernel_.sliver_rows;
    const int64_t height = kernel_.StoredRows((count + tiles - 1) / tiles);
    const int64_t panel_bytes = gemm::PanelBytes(gemm::PanelFormat::kQuads, depth);
    auto* results = static_cast<char*>(scratch.results.Reserve(finish_.Bytes(count, kWidth)));
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const char* panel = panels_ + (group * columns_.panels() + p) * panel_bytes;
      const int64_t n0 = p * kWidth, channels = std::min(kWidth, each - n0), channel = group * each + n0;
      AddedTo(reinterpret_cast<const int32_t*>(panel), channel, channels, scratch.added);
      gemm::SingleTiles multiply(kernel_, panel, depth, p + 1 < panel_end ? tiles : 0);
      // A tile is converted after the next one is computed: its sums have then left the store buffers.
      for (int64_t t = 0; t <= tiles; ++t) {
        const int64_t from = t * height, before = from - height;
        if (t < tiles)
          multiply.Sum({rows.data + from * rows.pitch, rows.pitch, gemm::kChunkBytes}, std::min(height, count - from),
                       scratch.sums[t % 2]);
        if (t == 0) continue;
        const int64_t done = std::min(height, count - before);
        auto* sums = reinterpret_cast<int32_t*>(scratch.sums[(t - 1) % 2]);
        if (row_sums != nullptr) SubtractZeros(row_sums + before, done, channel, channels, sums);
        finish_.Convert(sums, kWidth, done, scratch.added, channel, channels,
                        results + finish_.Bytes(before, channels));
      }
      finish_.Store(results, count, image, first, channel, channels);
    }
  }

  // The bias, and what zero points of x add up to.
  void AddedTo(const int32_t* column_sums, int64_t channel, int64_t count, uint32_t* added) const {
    for (int64_t j = 0; j < count; ++j) {
      auto column = static_cast<uint32_t>(column_sums[j]);
      if (offsets_.weight_zeros != nullptr)
        column -= static_cast<uint32_t>(columns_.depth()) * offsets_.weight_zeros[channel + j];
      added[j] = 0u - offsets_.x_zero * column;
      if (offsets_.bias != nullptr) added[j] += static_cast<uint32_t>(offsets_.bias[channel + j]);
    }
  }

  const uint32_t* SumRows(const ByteRows& rows, int64_t count, gemm::AlignedBuffer& buffer) const {
    auto* sums = static_cast<uint32_t*>(buffer.Reserve(count * static_cast<int64_t>(sizeof(uint32_t))));
    const auto sum = [&](auto type) {
      for (int64_t r = 0; r < count; ++r) {
        const auto* row = reinterpret_cast<const decltype(type)*>(rows.data + r * rows.pitch);
        int32_t of_row = 0;
        for (int64_t k = 0; k < columns_.depth(); ++k) of_row += row[k];
        sums[r] = static_cast<uint32_t>(of_row);
      }
    };
    unsigned_x_ ? sum(uint8_t{}) : sum(int8_t{});
    return sums;
  }

  void SubtractZeros(const uint32_t* row_sums, int64_t rows, int64_t channel, int64_t count, int32_t* sums) const {
    const uint32_t* zeros = offsets_.weight_zeros + channel;
    for (int64_t r = 0; r < rows; ++r, sums += kWidth)
      for (int64_t j = 0; j < count; ++j)
        sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) - zeros[j] * row_sums[r]);
  }

  RowReader reader_;
  int64_t images_, image_bytes_;
  FilterColumns columns_;
  const gemm::MicroKernel& kernel_;
  bool unsigned_x_;
  const uint8_t* x_;
  const char* panels_;
  IntegerOffsets offsets_;
  IntegerFinish finish_;
};

}  // namespace npu::convolution
