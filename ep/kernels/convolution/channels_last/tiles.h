// A dense convolution with channels last through the tile registers: rows of the image, rounded to bfloat16, times the
// panels of its weight. Tiles have 32 rows; where the kernel moves by one pixel they go on from line to line, over the
// padding between, since the pixels that they read are at one distance from each other throughout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/convolution/channels_last/plane.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/gemm/single_tile.h"

namespace npu::channels_last {

class Tiles {
 public:
  // Null if this machine has none, or multiplies so few channels faster with vectors: a step is a chunk of them.
  static const gemm::MicroKernel* Kernel(int64_t channels) {
    return channels >= kChunk / 3 ? gemm::AmxKernel(DType::kBFloat16, gemm::PanelFormat::kPairs) : nullptr;
  }
  // Of the rows of `weight`, which are zero beyond `channels`.
  static constexpr int64_t StoredChannels(int64_t channels) { return (channels + kChunk - 1) / kChunk * kChunk; }

  // `weight`: [kernel rows * kernel columns * StoredChannels(channels), channels out]. `bias` may be null.
  Tiles(const std::vector<Axis>& axes, int64_t images, int64_t channels, const float* x,
        const gemm::PackedMatrix& weight, const float* bias, const Finish& finish)
      : Tiles(PlaneOf(axes, images, channels, kBlockBytes), channels, x, weight, bias, finish) {}

  void Run() const {
    const int64_t panels = gemm::PanelCount(finish_.channels), threads = NumThreads();
    const Axis& v = rows_.vertical();
    const int64_t lines = rows_.RowsWithin(kBlockBytes);
    int64_t pieces = (v.out + lines - 1) / lines;  // of an image
    if (images_ * pieces >= threads) pieces = std::min(v.out, (pieces + threads - 1) / threads * threads);
    // With too few of them, threads share the channels.
    const int64_t groups = images_ * pieces >= threads ? 1 : std::min(panels, threads);
    finish_.activation.WithFormula<float>([&](const auto& formula) {
      ParallelFor(images_ * pieces * groups, 1, [&](int64_t begin, int64_t end) {
        const gemm::ScopedTiles scope(kernel_);
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t group = unit % groups, piece = unit / groups % pieces, image = unit / groups / pieces;
          RunLines(formula, image, piece * v.out / pieces, (piece + 1) * v.out / pieces, group * panels / groups,
                   (group + 1) * panels / groups);
        }
      });
    });
  }

 private:
  static constexpr int64_t kChunk = gemm::kChunkBytes / sizeof(BFloat16);
  static constexpr int64_t kBlockBytes = 384 << 10;  // of rows that are read together: a part of a second-level cache
  static constexpr int64_t kTogether = 4;            // tiles that a part of a panel is multiplied with in turn
  static constexpr int kWidth = gemm::kPanelColumns;
  static constexpr int64_t kRowBytes = kWidth * sizeof(BFloat16);  // of a panel

  Tiles(const Plane& plane, int64_t channels, const float* x, const gemm::PackedMatrix& weight, const float* bias,
        const Finish& finish)
      : kernel_(*Kernel(channels)),
        rows_(plane.axes, channels, StoredChannels(channels), /*separate=*/true),
        images_(plane.images),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish) {
    const Axis &v = plane.axes[0], &h = plane.axes[1];
    const int64_t stored = StoredChannels(channels);
    joined_ = v.stride == 1 && h.stride == 1;
    const bool merged = h.dilation == 1 && rows_.pixel_pitch() == stored;
    const int64_t taps = merged ? 1 : h.kernel, depth = (merged ? h.kernel : 1) * stored;
    for (int64_t ky = 0; ky < v.kernel; ++ky) {
      for (int64_t kx = 0; kx < taps; ++kx) {
        const int64_t offset = ky * v.dilation * rows_.row_pitch() + kx * h.dilation * rows_.pixel_pitch();
        for (int64_t from = 0; from < depth; from += kernel_.chunk_depth)
          blocks_.push_back({offset + from, std::min<int64_t>(kernel_.chunk_depth, depth - from)});
      }
    }
  }

  // Of the depth: a part of what one row of the kernel reads, or one tap.
  struct Block {
    int64_t offset;  // from the pixel of the first tap
    int64_t depth;
  };
  // Outputs [first, first + rows) of those that are numbered through.
  struct Tile {
    int64_t first, rows;
  };

  // The outputs of some lines, numbered as their pixels are in memory: `wide` from line to line.
  struct Lines {
    int64_t together, wide, count, runs;  // of one run; `runs` of them

    int64_t tiles_of_run() const { return (count + gemm::kMaxSliverRows - 1) / gemm::kMaxSliverRows; }
    int64_t tiles() const { return runs * tiles_of_run(); }
    Tile At(int64_t t) const {
      const int64_t run = t / tiles_of_run(), first = t % tiles_of_run() * gemm::kMaxSliverRows;
      return {run * wide * together + first, std::min<int64_t>(gemm::kMaxSliverRows, count - first)};
    }
  };
  Lines LinesOf(int64_t count) const {
    const int64_t out = rows_.horizontal().out;
    if (!joined_) return {1, out, out, count};
    const int64_t wide = rows_.row_pitch() / rows_.pixel_pitch();
    return {count, wide, (count - 1) * wide + out, 1};
  }

  struct Scratch {
    gemm::AlignedBuffer rows;
    alignas(64) float sums[kTogether][gemm::kMaxSliverRows * kWidth];
    alignas(64) float bias[kWidth];
  };

  template <class F>
  void RunLines(const F& formula, int64_t image, int64_t begin, int64_t end, int64_t panel_begin,
                int64_t panel_end) const {
    static thread_local Scratch scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    // Tiles read rows that they do not have.
    const int64_t pitch = h.stride * rows_.pixel_pitch(), slack = gemm::kMaxSliverRows * pitch;
    const Rows<BFloat16> rows =
        rows_.Read(x_ + image * v.in * h.in * rows_.channels(), begin, end, scratch.rows, slack);
    const Lines lines = LinesOf(end - begin);
    const int64_t line_pitch = v.stride * rows.row_pitch;
    const int64_t panel_bytes = gemm::PanelBytes(gemm::PanelFormat::kPairs, weight_.rows);
    const char* panels = static_cast<const char*>(weight_.data);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const int64_t channel = p * kWidth, count = std::min<int64_t>(kWidth, finish_.channels - channel);
      std::fill_n(scratch.bias, kWidth, 0.0f);
      if (bias_ != nullptr) std::copy_n(bias_ + channel, count, scratch.bias);
      const char* panel = panels + p * panel_bytes;
      gemm::AmxWork work{.epilogue = &gemm::SingleTiles::NoEpilogue()};
      // While a panel is multiplied the next one is read.
      if (p + 1 < panel_end)
        work.streams = {panel + panel_bytes, panel_bytes, lines.tiles() * weight_.rows / kernel_.depth_multiple};
      for (int64_t t = 0; t < lines.tiles(); t += kTogether) {
        const int64_t some = std::min(kTogether, lines.tiles() - t);
        const char* part = panel;
        for (const Block& block : blocks_) {
          for (int64_t i = 0; i < some; ++i) {
            const Tile tile = lines.At(t + i);
            const BFloat16* from = rows.data + tile.first / lines.wide * line_pitch + tile.first % lines.wide * pitch;
            const gemm::Sliver a{from + block.offset, pitch * static_cast<int64_t>(sizeof(BFloat16)),
                                 gemm::kChunkBytes};
            kernel_.amx_functions[kernel_.StoredRows(tile.rows)](a, part, work, block.depth, scratch.sums[i],
                                                                 part != panel);
          }
          part += block.depth * kRowBytes;
        }
        for (int64_t i = 0; i < some; ++i)
          StoreTile(formula, scratch.sums[i], lines, lines.At(t + i), image * v.out + begin, channel, count,
                    scratch.bias);
      }
    }
  }

  // Of each line, what is no padding.
  template <class F>
  void StoreTile(const F& formula, const float* sums, const Lines& lines, const Tile& tile, int64_t first_line,
                 int64_t channel, int64_t count, const float* bias) const {
    const int64_t out = rows_.horizontal().out;
    for (int64_t at = tile.first, end = tile.first + tile.rows; at < end;) {
      const int64_t line = at / lines.wide, x = at % lines.wide, stop = std::min(end, (line + 1) * lines.wide);
      const int64_t height = std::min(out - x, stop - at);
      if (height > 0)
        finish_.Store<kWidth>(formula, sums + (at - tile.first) * kWidth, height, bias, (first_line + line) * out + x,
                              channel, count);
      at = stop;
    }
  }

  const gemm::MicroKernel& kernel_;
  PaddedRows<BFloat16> rows_;
  int64_t images_;
  const float* x_;
  gemm::PackedMatrix weight_;
  const float* bias_;
  Finish finish_;
  bool joined_;  // whether outputs are numbered through from line to line
  std::vector<Block> blocks_;
};

}  // namespace npu::channels_last
