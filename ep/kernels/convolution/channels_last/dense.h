// A convolution with channels last as a product of matrices whose left side is the image itself: the pixels that
// neighbouring outputs read through one tap are rows of a matrix, at one distance from each other. A row of the kernel
// is one block of its depth, since its taps are neighbours in memory, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/convolution/channels_last/pieces.h"
#include "ep/kernels/convolution/channels_last/plane.h"
#include "ep/kernels/convolution/channels_last/plane_results.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packed_weight.h"

namespace npu::channels_last {

// T: float or BFloat16, the type of the pixels and of the products.
template <class T>
class Dense {
 public:
  // Null if this machine has none.
  static const gemm::MicroKernel* Kernel() {
    return std::is_same_v<T, float> ? gemm::FloatKernel(kFormat) : gemm::Bf16Kernel();
  }
  // Of the rows of `weight`, which are zero beyond `channels`.
  static constexpr int64_t StoredChannels(int64_t channels) { return (channels + kDepth - 1) / kDepth * kDepth; }

  // `weight`: [kernel rows * kernel columns * StoredChannels(channels), channels out]. `bias` may be null.
  Dense(const std::vector<Axis>& axes, int64_t images, const PixelSource<T>& x, const gemm::PackedMatrix& weight,
        const float* bias, const Finish<T>& finish)
      : Dense(PlaneOf(axes, images, x.channels * static_cast<int64_t>(sizeof(T)), BlockBytes(x)), x, weight, bias,
              finish) {}

  // The results are written as planes instead.
  Dense& To(const PlaneResults& planes) {
    planes_ = planes;
    return *this;
  }

  void Run() const {
    const Pieces pieces(images_, rows_.vertical().out, rows_.RowsWithin(BlockBytes(x_)),
                        gemm::PanelCount(finish_.channels));
    finish_.activation.template WithFormula<float>([&](const auto& formula) {
      ParallelFor(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) RunPiece(formula, pieces.At(i), LinesOf(pieces, i + 1, end));
      });
    });
  }

 private:
  Dense(const Plane& plane, const PixelSource<T>& x, const gemm::PackedMatrix& weight, const float* bias,
        const Finish<T>& finish)
      : rows_(plane.axes, x.channels, StoredChannels(x.channels), /*separate=*/true, /*copied=*/x.pixels == nullptr),
        images_(plane.images),
        outputs_(plane.outputs),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish) {
    const Axis &v = plane.axes[0], &h = plane.axes[1];
    const int64_t stored = StoredChannels(x.channels);
    const bool merged = h.dilation == 1 && rows_.pixel_pitch() == stored;
    const int64_t taps = merged ? 1 : h.kernel, depth = (merged ? h.kernel : 1) * stored;
    for (int64_t ky = 0; ky < v.kernel; ++ky)
      for (int64_t kx = 0; kx < taps; ++kx)
        blocks_.push_back({ky * v.dilation * rows_.row_pitch() + kx * h.dilation * rows_.pixel_pitch(), depth});
  }

  // Of the depth: what one row of the kernel reads, or one tap.
  struct Block {
    int64_t offset;  // from the pixel of the first tap
    int64_t depth;
  };
  // Neighbouring outputs of a line, and what the first one reads first.
  struct Outputs {
    const T* from;
    int64_t pixel, height;
  };
  // Of rows that are read together: a part of a second-level cache. Planes of the next rows are read into it meanwhile.
  static constexpr int64_t kBlockBytes = 448 << 10, kBlockBytesOfPlanes = 224 << 10;
  static constexpr int64_t kStayingBytes = 256 << 10;  // of panels that stay in that cache beside them
  static constexpr int kWidth = gemm::kPanelColumns;
  static constexpr gemm::PanelFormat kFormat =
      std::is_same_v<T, float> ? gemm::PanelFormat::kFloat32 : gemm::PanelFormat::kPairs;
  static constexpr int kDepth = sizeof(float) / sizeof(T);      // rows of the weight in a row of a panel
  static constexpr int64_t kRowBytes = kWidth * sizeof(float);  // of a panel

  static int64_t BlockBytes(const PixelSource<T>& x) { return x.pixels == nullptr ? kBlockBytesOfPlanes : kBlockBytes; }

  // What the next piece reads of planes, if this thread has one.
  PlaneLines LinesOf(const Pieces& pieces, int64_t i, int64_t end) const {
    if (i >= end) return {};
    const Piece next = pieces.At(i);
    return rows_.LinesOf(x_, next.image, next.begin, next.end);
  }

  // Lines of planes that are prefetched in equal parts. Each part has lines of neighbouring planes.
  class LaterLines {
   public:
    LaterLines(const PlaneLines& lines, int64_t parts)
        : lines_(lines), parts_(lines.lines == 0 ? 0 : std::max<int64_t>(parts / lines.lines, 1)) {}
    void Next(gemm::Prefetch& prefetch) {
      if (line_ >= lines_.lines) return;
      constexpr int64_t kLine = 64;
      const int64_t begin = part_ * lines_.planes / parts_, end = (part_ + 1) * lines_.planes / parts_;
      prefetch.later = lines_.data + begin * lines_.pitch + line_ * kLine;
      prefetch.later_stride = lines_.pitch;
      prefetch.later_lines = end - begin;
      if (++part_ == parts_) part_ = 0, ++line_;
    }

   private:
    PlaneLines lines_;
    int64_t parts_;  // of the planes
    int64_t part_ = 0, line_ = 0;
  };

  // While the piece is multiplied `next_lines` are prefetched.
  template <class F>
  void RunPiece(const F& formula, const Piece& piece, const PlaneLines& next_lines) const {
    const auto [image, begin, end, panel_begin, panel_end] = piece;
    static thread_local gemm::AlignedBuffer scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const Rows<T> rows = rows_.Read(x_, image, begin, end, scratch);
    const gemm::MicroKernel& kernel = *Kernel();
    // Tiles of equal size, in one line each.
    const int64_t tiles = (h.out + kernel.sliver_rows - 1) / kernel.sliver_rows;
    const int64_t panel_bytes = gemm::PanelBytes(kFormat, weight_.rows);
    const char* panels = static_cast<const char*>(weight_.data);
    const bool stay = (panel_end - panel_begin) * panel_bytes <= kStayingBytes;
    const auto outputs_at = [&](int64_t number) -> Outputs {
      const int64_t line = number / tiles, t = number % tiles;
      const int64_t first = t * h.out / tiles, pixel = (image * v.out + begin + line) * h.out + first;
      const T* from = rows.data + line * v.stride * rows.row_pitch + first * h.stride * rows.pixel_pitch;
      return {from, pixel, std::min((t + 1) * h.out / tiles - first, outputs_ - pixel)};
    };
    const int64_t depth = weight_.rows / kDepth;
    int64_t count = (end - begin) * tiles;
    while (count > 0 && outputs_at(count - 1).height <= 0) --count;  // of the last row
    // Pixels whose sums wait to be written as planes.
    int64_t held = 0;
    LaterLines later(next_lines, (panel_end - panel_begin) * count * static_cast<int64_t>(blocks_.size()));
    const auto run = [&](int64_t p, const Outputs& outputs, const char* next, int64_t step, bool last) {
      const int64_t channel = p * kWidth, count = std::min<int64_t>(kWidth, finish_.channels - channel);
      const BlockBias<kWidth> bias(bias_, channel, count);
      alignas(64) float sums[(PlaneResults::kMost + gemm::kSliverRows) * kWidth];
      SumTile(kernel.FunctionsFor(count)[outputs.height], outputs, panels + p * panel_bytes, next, step, channel, count,
              later, sums + held * kWidth);
      if (!planes_)
        return finish_.template Store<kWidth>(formula, sums, outputs.height, bias.data(), outputs.pixel, channel,
                                              count);
      held += outputs.height;
      if (!last && held + gemm::kSliverRows <= PlaneResults::kMost) return;
      planes_->template Write<kWidth>(formula, sums, held, bias.data(), outputs.pixel + outputs.height - held, channel,
                                      count);
      held = 0;
    };
    if (stay && !planes_) {
      // All channels of a tile, so that results are written one after the other. Meanwhile the pixels of the next tile
      // are read.
      Outputs next = outputs_at(0);
      for (int64_t t = 0; t < count; ++t) {
        const Outputs outputs = std::exchange(next, outputs_at(std::min(t + 1, count - 1)));
        const char* pixels = reinterpret_cast<const char*>(next.from);
        const int64_t bytes = next.height * h.stride * rows.pixel_pitch * static_cast<int64_t>(sizeof(T));
        const int64_t steps = (panel_end - panel_begin) * depth, step = (bytes + steps - 1) / steps;
        for (int64_t p = panel_begin; p < panel_end; ++p, pixels += depth * step)
          run(p, outputs, pixels, step, /*last=*/true);
      }
    } else {
      // While a panel is multiplied the next one is read.
      const int64_t step = (kRowBytes + count - 1) / count;
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        const char* next = panels + std::min(p + 1, panel_end - 1) * panel_bytes;
        for (int64_t t = 0; t < count; ++t, next += depth * step) run(p, outputs_at(t), next, step, t + 1 == count);
      }
    }
  }

  // Rows of a tile at `first`, of an array of the output's shape.
  template <int kWrite>
  void PrefetchRows(const char* first, int64_t bytes, int64_t begin, int64_t end, int64_t count) const {
    constexpr int64_t kLine = 64;
    const int64_t last = count * bytes - 1;
    for (int64_t r = begin; r < end; ++r) {
      const char* row = first + r * finish_.channels * bytes;
      for (int64_t at = 0; at < last; at += kLine) __builtin_prefetch(row + at, kWrite);
      __builtin_prefetch(row + last, kWrite);
    }
  }

  // Prefetches `next` and, before they are read and written, the rows of the residual and of the result: the
  // micro-kernel has a chunk of the depth for each row, of a small depth too few.
  void SumTile(gemm::TileFunction multiply, const Outputs& outputs, const char* panel, const char* next, int64_t step,
               int64_t channel, int64_t count, LaterLines& later, float* sums) const {
    constexpr int64_t kElement = sizeof(T);
    const int64_t pitch = rows_.horizontal().stride * rows_.pixel_pitch() * kElement;
    const Block* last = &blocks_.back();
    gemm::Prefetch prefetch{next, step};
    if (planes_) {
      prefetch.result = reinterpret_cast<const char*>(planes_->y + planes_->At(outputs.pixel, channel));
      prefetch.result_stride = planes_->positions * static_cast<int64_t>(sizeof(float));
      prefetch.result_end = outputs.height * static_cast<int64_t>(sizeof(float)) - 1;
    } else {
      const int64_t at = outputs.pixel * finish_.channels + channel, bytes = finish_.bytes();
      const int64_t chunks = last->depth * kElement / gemm::kChunkBytes;
      prefetch.result = finish_.ResultAt(at);
      prefetch.result_stride = finish_.channels * bytes;
      prefetch.result_end = count * bytes - 1;
      PrefetchRows<1>(prefetch.result, bytes, std::min(chunks, outputs.height), outputs.height, count);
      if (finish_.residual != nullptr)
        PrefetchRows<0>(reinterpret_cast<const char*>(finish_.residual + at), kElement, 0, outputs.height, count);
    }
    for (const Block* block = blocks_.data(); block <= last; ++block) {
      if (block == last) prefetch.result_rows = planes_ ? count : outputs.height;
      later.Next(prefetch);
      multiply({outputs.from + block->offset, pitch, gemm::kChunkBytes}, panel, prefetch, block->depth, sums,
               block != blocks_.data());
      prefetch.data += block->depth / kDepth * step;
      panel += block->depth / kDepth * kRowBytes;
    }
  }

  PaddedRows<T> rows_;
  int64_t images_, outputs_;
  PixelSource<T> x_;
  gemm::PackedMatrix weight_;
  const float* bias_;
  Finish<T> finish_;
  std::optional<PlaneResults> planes_;
  std::vector<Block> blocks_;
};

}  // namespace npu::channels_last
