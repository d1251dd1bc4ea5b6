// A convolution with channels last as a product of matrices whose left side is the image itself: the pixels that
// neighbouring outputs read through one tap are rows of a matrix, at one distance from each other. A row of the kernel
// is one block of its depth, since its taps are neighbours in memory, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/convolution/channels_last/pieces.h"
#include "ep/kernels/convolution/channels_last/plane.h"
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
  Dense(const std::vector<Axis>& axes, int64_t images, int64_t channels, const T* x, const gemm::PackedMatrix& weight,
        const float* bias, const Finish<T>& finish)
      : Dense(PlaneOf(axes, images, channels * static_cast<int64_t>(sizeof(T)), kBlockBytes), channels, x, weight, bias,
              finish) {}

  void Run() const {
    const Pieces pieces(images_, rows_.vertical().out, rows_.RowsWithin(kBlockBytes),
                        gemm::PanelCount(finish_.channels));
    finish_.activation.template WithFormula<float>([&](const auto& formula) {
      ParallelFor(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) RunPiece(formula, pieces.At(i));
      });
    });
  }

 private:
  Dense(const Plane& plane, int64_t channels, const T* x, const gemm::PackedMatrix& weight, const float* bias,
        const Finish<T>& finish)
      : rows_(plane.axes, channels, StoredChannels(channels), /*separate=*/true),
        images_(plane.images),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish) {
    const Axis &v = plane.axes[0], &h = plane.axes[1];
    const int64_t stored = StoredChannels(channels);
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
  static constexpr int64_t kBlockBytes = 384 << 10;    // of rows that are read together: a part of a second-level cache
  static constexpr int64_t kStayingBytes = 256 << 10;  // of panels that stay in that cache beside them
  static constexpr int kWidth = gemm::kPanelColumns;
  static constexpr gemm::PanelFormat kFormat =
      std::is_same_v<T, float> ? gemm::PanelFormat::kFloat32 : gemm::PanelFormat::kPairs;
  static constexpr int kDepth = sizeof(float) / sizeof(T);      // rows of the weight in a row of a panel
  static constexpr int64_t kRowBytes = kWidth * sizeof(float);  // of a panel

  template <class F>
  void RunPiece(const F& formula, const Piece& piece) const {
    const auto [image, begin, end, panel_begin, panel_end] = piece;
    static thread_local gemm::AlignedBuffer scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const Rows<T> rows = rows_.Read(x_ + image * v.in * h.in * rows_.channels(), begin, end, scratch);
    const gemm::MicroKernel& kernel = *Kernel();
    // Tiles of equal size, in one line each.
    const int64_t tiles = (h.out + kernel.sliver_rows - 1) / kernel.sliver_rows;
    const int64_t panel_bytes = gemm::PanelBytes(kFormat, weight_.rows);
    const char* panels = static_cast<const char*>(weight_.data);
    const bool stay = (panel_end - panel_begin) * panel_bytes <= kStayingBytes;
    const auto outputs_at = [&](int64_t number) -> Outputs {
      const int64_t line = number / tiles, t = number % tiles;
      const int64_t first = t * h.out / tiles, height = (t + 1) * h.out / tiles - first;
      const T* from = rows.data + line * v.stride * rows.row_pitch + first * h.stride * rows.pixel_pitch;
      return {from, (image * v.out + begin + line) * h.out + first, height};
    };
    const auto run = [&](int64_t p, const Outputs& outputs, const char* next, int64_t step) {
      const int64_t channel = p * kWidth, count = std::min<int64_t>(kWidth, finish_.channels - channel);
      const BlockBias<kWidth> bias(bias_, channel, count);
      alignas(64) float sums[gemm::kSliverRows * kWidth];
      SumTile(kernel.FunctionsFor(count)[outputs.height], outputs.from, panels + p * panel_bytes, next, step,
              outputs.pixel * finish_.channels + channel, outputs.height, count, sums);
      finish_.template Store<kWidth>(formula, sums, outputs.height, bias.data(), outputs.pixel, channel, count);
    };
    const int64_t count = (end - begin) * tiles, depth = weight_.rows / kDepth;
    if (stay) {
      // All channels of a tile, so that results are written one after the other. Meanwhile the pixels of the next tile
      // are read.
      Outputs next = outputs_at(0);
      for (int64_t t = 0; t < count; ++t) {
        const Outputs outputs = std::exchange(next, outputs_at(std::min(t + 1, count - 1)));
        const char* pixels = reinterpret_cast<const char*>(next.from);
        const int64_t bytes = next.height * h.stride * rows.pixel_pitch * static_cast<int64_t>(sizeof(T));
        const int64_t steps = (panel_end - panel_begin) * depth, step = (bytes + steps - 1) / steps;
        for (int64_t p = panel_begin; p < panel_end; ++p, pixels += depth * step) run(p, outputs, pixels, step);
      }
    } else {
      // While a panel is multiplied the next one is read.
      const int64_t step = (kRowBytes + count - 1) / count;
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        const char* next = panels + std::min(p + 1, panel_end - 1) * panel_bytes;
        for (int64_t t = 0; t < count; ++t, next += depth * step) run(p, outputs_at(t), next, step);
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
  void SumTile(gemm::TileFunction multiply, const T* from, const char* panel, const char* next, int64_t step,
               int64_t at, int64_t height, int64_t count, float* sums) const {
    constexpr int64_t kElement = sizeof(T);
    const int64_t pitch = rows_.horizontal().stride * rows_.pixel_pitch() * kElement, bytes = finish_.bytes();
    const Block* last = &blocks_.back();
    const int64_t chunks = last->depth * kElement / gemm::kChunkBytes;
    const char* result = finish_.ResultAt(at);
    PrefetchRows<1>(result, bytes, std::min(chunks, height), height, count);
    if (finish_.residual != nullptr)
      PrefetchRows<0>(reinterpret_cast<const char*>(finish_.residual + at), kElement, 0, height, count);
    for (const Block* block = blocks_.data(); block <= last; ++block) {
      multiply({from + block->offset, pitch, gemm::kChunkBytes}, panel,
               {next, step, result, finish_.channels * bytes, count * bytes - 1, block == last ? height : 0},
               block->depth, sums, block != blocks_.data());
      next += block->depth / kDepth * step;
      panel += block->depth / kDepth * kRowBytes;
    }
  }

  PaddedRows<T> rows_;
  int64_t images_;
  const T* x_;
  gemm::PackedMatrix weight_;
  const float* bias_;
  Finish<T> finish_;
  std::vector<Block> blocks_;
};

}  // namespace npu::channels_last
