// A dense convolution with channels last through the tile registers: rows of the image, which is of bfloat16, times
// the panels of its weight. Tiles have 32 rows; where the kernel moves by one pixel they go on from line to line, over
// the padding between, since the pixels that they read are at one distance from each other throughout. Of few channels,
// what an output reads through all taps is copied to a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/convolution/channels_last/pieces.h"
#include "ep/kernels/convolution/channels_last/plane.h"
#include "ep/kernels/convolution/integer/rows.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/gemm/single_tile.h"

namespace npu::channels_last {

class Tiles {
 public:
  // Null if this machine has none.
  static const gemm::MicroKernel* Kernel() { return gemm::AmxKernel(DType::kBFloat16, gemm::PanelFormat::kPairs); }
  // Of the rows of `weight`, which are zero beyond `channels`: a step of the products is a chunk of them.
  static constexpr int64_t StoredChannels(int64_t channels, int64_t taps) {
    return Copies(channels, taps) ? channels : (channels + kChunk - 1) / kChunk * kChunk;
  }

  // `weight`: [kernel rows * kernel columns * StoredChannels(..), channels out]. `bias` may be null.
  Tiles(const std::vector<Axis>& axes, int64_t images, const PixelSource<BFloat16>& x, const gemm::PackedMatrix& weight,
        const float* bias, const Finish<BFloat16>& finish)
      : Tiles(PlaneOf(axes, images, x.channels * static_cast<int64_t>(sizeof(BFloat16)), kBlockBytes), x, weight, bias,
              finish) {}

  void Run() const {
    int64_t lines = rows_.RowsWithin(kBlockBytes);
    if (copies_) lines = std::clamp<int64_t>(kBlockBytes / (rows_.horizontal().out * copy_pitch() * 2), 1, lines);
    const Pieces pieces(images_, rows_.vertical().out, lines, gemm::PanelCount(finish_.channels));
    finish_.activation.WithFormula<float>([&](const auto& formula) {
      ParallelFor(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        const gemm::ScopedTiles scope(kernel_);
        for (int64_t i = begin; i < end; ++i) RunPiece(formula, pieces.At(i));
      });
    });
  }

 private:
  static constexpr int64_t kChunk = gemm::kChunkBytes / sizeof(BFloat16);
  static constexpr int64_t kBlockBytes = 384 << 10;    // of rows that are read together: a part of a second-level cache
  static constexpr int64_t kStayingBytes = 256 << 10;  // of panels that stay in that cache beside them
  static constexpr int64_t kTogether = 4;              // tiles that a part of a panel is multiplied with in turn
  static constexpr int kWidth = gemm::kPanelColumns;
  static constexpr int64_t kRowBytes = kWidth * sizeof(BFloat16);  // of a panel

  static constexpr bool Copies(int64_t channels, int64_t taps) { return channels < kChunk / 3 && taps > 1; }

  Tiles(const Plane& plane, const PixelSource<BFloat16>& x, const gemm::PackedMatrix& weight, const float* bias,
        const Finish<BFloat16>& finish)
      : kernel_(*Kernel()),
        copies_(Copies(x.channels, plane.axes[0].kernel * plane.axes[1].kernel)),
        rows_(plane.axes, x.channels, StoredChannels(x.channels, plane.axes[0].kernel * plane.axes[1].kernel), !copies_,
              /*copied=*/true),
        images_(plane.images),
        outputs_(plane.outputs),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish) {
    const Axis &v = plane.axes[0], &h = plane.axes[1];
    joined_ = v.stride == 1 && h.stride == 1;
    merged_ = h.dilation == 1 && rows_.pixel_pitch() == rows_.stored();
    if (copies_) AddBlocks(0, weight.rows);
    const int64_t taps = merged_ ? 1 : h.kernel, depth = (merged_ ? h.kernel : 1) * rows_.stored();
    for (int64_t ky = 0; !copies_ && ky < v.kernel; ++ky)
      for (int64_t kx = 0; kx < taps; ++kx)
        AddBlocks(ky * v.dilation * rows_.row_pitch() + kx * h.dilation * rows_.pixel_pitch(), depth);
  }

  void AddBlocks(int64_t offset, int64_t depth) {
    for (int64_t from = 0; from < depth; from += kernel_.chunk_depth)
      blocks_.push_back({offset + from, std::min<int64_t>(kernel_.chunk_depth, depth - from)});
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
    if (copies_) return {count, out, count * out, 1};
    if (!joined_) return {1, out, out, count};
    const int64_t wide = rows_.row_pitch() / rows_.pixel_pitch();
    return {count, wide, (count - 1) * wide + out, 1};
  }

  // Of copied rows, in elements: whole chunks, and not so far apart that they are in one set of the first-level cache.
  int64_t copy_pitch() const {
    constexpr int64_t kFar = 1024 / sizeof(BFloat16);
    const int64_t pitch = (weight_.rows + kChunk - 1) / kChunk * kChunk;
    return pitch % kFar == 0 ? pitch + kChunk : pitch;
  }

  // What the outputs of `count` lines read, one after the other.
  const BFloat16* CopyRows(const Rows<BFloat16>& rows, int64_t count, gemm::AlignedBuffer& buffer) const {
    constexpr int64_t kBytes = sizeof(BFloat16);
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const int64_t pitch = copy_pitch(), runs = merged_ ? 1 : h.kernel;
    const int64_t run = (merged_ ? h.kernel : 1) * rows_.channels();
    auto* copies = static_cast<BFloat16*>(buffer.Reserve((count * h.out + gemm::kMaxSliverRows) * pitch * kBytes));
    BFloat16* to = copies;
    for (int64_t line = 0; line < count; ++line) {
      for (int64_t x = 0; x < h.out; ++x, to += pitch) {
        const BFloat16* pixel = rows.data + line * v.stride * rows.row_pitch + x * h.stride * rows.pixel_pitch;
        for (int64_t i = 0; i < v.kernel * runs; ++i) {
          const int64_t at = i / runs * v.dilation * rows.row_pitch + i % runs * h.dilation * rows.pixel_pitch;
          convolution::CopyShort(reinterpret_cast<const uint8_t*>(pixel + at), run * kBytes,
                                 reinterpret_cast<uint8_t*>(to + i * run));
        }
        std::fill(to + weight_.rows, to + pitch, BFloat16{});  // times 0, what is no number would not be 0
      }
    }
    return copies;
  }

  // Of the products of a tile, at least.
  int64_t steps() const { return std::max<int64_t>(1, weight_.rows / kernel_.depth_multiple); }

  struct Scratch {
    gemm::AlignedBuffer rows, copies;
    alignas(64) float sums[kTogether][gemm::kMaxSliverRows * kWidth];
    alignas(64) float bias[kWidth];
  };

  template <class F>
  void RunPiece(const F& formula, const Piece& piece) const {
    const auto [image, begin, end, panel_begin, panel_end] = piece;
    static thread_local Scratch scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    // Tiles read rows that they do not have.
    const int64_t slack = gemm::kMaxSliverRows * h.stride * rows_.pixel_pitch();
    const Rows<BFloat16> rows = rows_.Read(x_, image, begin, end, scratch.rows, slack);
    const Lines lines = LinesOf(end - begin);
    const BFloat16* left = copies_ ? CopyRows(rows, end - begin, scratch.copies) : rows.data;
    const int64_t pitch = copies_ ? copy_pitch() : h.stride * rows.pixel_pitch;
    const int64_t line_pitch = copies_ ? lines.wide * pitch : v.stride * rows.row_pitch;
    const int64_t panel_bytes = gemm::PanelBytes(gemm::PanelFormat::kPairs, weight_.rows);
    const char* panels = static_cast<const char*>(weight_.data);
    gemm::AmxWork work{.epilogue = &gemm::SingleTiles::NoEpilogue()};
    // The tiles from `t` on with panel p.
    const auto run = [&](int64_t t, int64_t p) {
      const int64_t some = std::min(kTogether, lines.tiles() - t);
      const int64_t channel = p * kWidth, count = std::min<int64_t>(kWidth, finish_.channels - channel);
      const char *panel = panels + p * panel_bytes, *part = panel;
      for (const Block& block : blocks_) {
        for (int64_t i = 0; i < some; ++i) {
          const Tile tile = lines.At(t + i);
          const BFloat16* from = left + tile.first / lines.wide * line_pitch + tile.first % lines.wide * pitch;
          const gemm::Sliver a{from + block.offset, pitch * static_cast<int64_t>(sizeof(BFloat16)), gemm::kChunkBytes};
          kernel_.amx_functions[kernel_.StoredRows(tile.rows)](a, part, work, block.depth, scratch.sums[i],
                                                               part != panel);
        }
        part += block.depth * kRowBytes;
      }
      gemm::StoreHeldTiles(work);
      std::fill_n(scratch.bias, kWidth, 0.0f);
      if (bias_ != nullptr) std::copy_n(bias_ + channel, count, scratch.bias);
      for (int64_t i = 0; i < some; ++i)
        StoreTile(formula, scratch.sums[i], lines, lines.At(t + i), image * v.out + begin, channel, count,
                  scratch.bias);
    };
    if ((panel_end - panel_begin) * panel_bytes <= kStayingBytes) {
      // All channels of some tiles, so that results are written one after the other.
      for (int64_t t = 0; t < lines.tiles(); t += kTogether)
        for (int64_t p = panel_begin; p < panel_end; ++p) run(t, p);
      return;
    }
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      // While a panel is multiplied the next one is read.
      work.streams = {};
      if (p + 1 < panel_end) work.streams = {panels + (p + 1) * panel_bytes, panel_bytes, lines.tiles() * steps()};
      for (int64_t t = 0; t < lines.tiles(); t += kTogether) run(t, p);
    }
  }

  // Of each line, what is neither padding nor behind the last output.
  template <class F>
  void StoreTile(const F& formula, const float* sums, const Lines& lines, const Tile& tile, int64_t first_line,
                 int64_t channel, int64_t count, const float* bias) const {
    const int64_t out = rows_.horizontal().out;
    for (int64_t at = tile.first, end = tile.first + tile.rows; at < end;) {
      const int64_t line = at / lines.wide, x = at % lines.wide, stop = std::min(end, (line + 1) * lines.wide);
      const int64_t pixel = (first_line + line) * out + x, height = std::min({out - x, stop - at, outputs_ - pixel});
      if (height > 0)
        finish_.Store<kWidth>(formula, sums + (at - tile.first) * kWidth, height, bias, pixel, channel, count);
      at = stop;
    }
  }

  const gemm::MicroKernel& kernel_;
  bool copies_;  // what outputs read to rows
  PaddedRows<BFloat16> rows_;
  int64_t images_, outputs_;
  PixelSource<BFloat16> x_;
  gemm::PackedMatrix weight_;
  const float* bias_;
  Finish<BFloat16> finish_;
  bool joined_;  // whether outputs are numbered through from line to line
  bool merged_;  // whether taps of a line are neighbours in memory
  std::vector<Block> blocks_;
};

}  // namespace npu::channels_last
