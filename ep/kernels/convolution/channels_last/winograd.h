// A convolution of 3 × 3 taps with channels last by Winograd's minimal filtering: 2 × 2 outputs of a tile of 4 × 4
// pixels take 16 products of each channel instead of 36. Pixels, weight and sums are transformed
// (winograd_transforms.h); at each of the 16 points of a tile, tiles times channels are multiplied by a matrix.
//
// Outputs share tiles: what is infinite or no number in one pixel would reach outputs beside those that read it. Tiles
// whose results are not finite are therefore summed tap by tap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/pieces.h"
#include "ep/kernels/convolution/channels_last/winograd_transforms.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/pooling/windows.h"

namespace npu::channels_last {

class Winograd {
 public:
  using Axis = pooling::Axis;

  // Whether it pays for a weight of this shape, with strides and dilations of 1.
  static bool Suits(const Shape& weight) {
    constexpr int64_t kFewChannels = 16;  // transforms would take longer than they save
    return weight[2] == 3 && weight[3] == 3 && weight[0] >= kFewChannels && weight[1] >= kFewChannels;
  }
  static int64_t StoredColumns(int64_t out) { return winograd::kPoints * gemm::PanelCount(out) * kWidth; }

  // The rows [StoredColumns(out), channels] of a weight [out, channels, 3, 3]: those of one point after the other.
  static std::vector<float> RowsOf(const float* weight, int64_t out, int64_t channels) {
    const int64_t point = gemm::PanelCount(out) * kWidth * channels;
    std::vector<float> rows(static_cast<size_t>(winograd::kPoints * point));
    ParallelFor(out, RowGrain(channels * winograd::kPoints), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * channels; i < end * channels; ++i)
        winograd::TransformTaps(weight + i * winograd::kTaps, rows.data() + i, point);
    });
    return rows;
  }

  // `weight`: [channels, StoredColumns(channels out)]. `bias` may be null.
  Winograd(const std::vector<Axis>& axes, int64_t images, int64_t channels, const float* x,
           const gemm::PackedMatrix& weight, const float* bias, const Finish<float>& finish)
      : vertical_(axes[0]),
        horizontal_(axes[1]),
        images_(images),
        channels_(channels),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish),
        across_(TilesOf(horizontal_)),
        of_image_(TilesOf(vertical_) * across_),
        pitch_((channels + kLanes - 1) / kLanes * kLanes + kLine) {}

  void Run() const {
    const int64_t tiles = images_ * of_image_;
    const Pieces pieces(1, tiles, TilesTogether(tiles), gemm::PanelCount(finish_.channels));
    finish_.activation.WithFormula<float>([&](const auto& formula) {
      ParallelFor(pieces.count(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) RunPiece(formula, pieces.At(i));
      });
    });
  }

 private:
  static constexpr int kLanes = gemm::kLanes, kWidth = gemm::kPanelColumns, kPoints = winograd::kPoints;
  static constexpr int kOutputs = winograd::kOutputs;
  static constexpr int64_t kLine = 64 / sizeof(float);
  static constexpr int64_t kBlockBytes = 384 << 10;  // of points of tiles: a part of a second-level cache
  // While so many tiles are multiplied, the next panel of the weight arrives from the last-level cache.
  static constexpr int64_t kFewTiles = int64_t{4} * gemm::kSliverRows;

  static int64_t TilesOf(const Axis& axis) { return (axis.out + kOutputs - 1) / kOutputs; }

  // Of a piece: as many for each thread.
  int64_t TilesTogether(int64_t tiles) const {
    const int64_t tile_bytes = kPoints * (channels_ + finish_.channels) * static_cast<int64_t>(sizeof(float));
    const int64_t fitting = std::max(kFewTiles, kBlockBytes / tile_bytes) * NumThreads();
    const int64_t turns = (tiles + fitting / 2) / fitting;
    return turns == 0 ? tiles : (tiles + turns * NumThreads() - 1) / (turns * NumThreads());
  }

  // The 4 × 4 pixels of a tile, and its first output.
  struct Tile {
    const float* pixels[kPoints];
    int64_t image, line, column;
  };
  Tile TileAt(int64_t number, const float* padding) const {
    Tile tile;
    const int64_t in_image = number % of_image_;
    tile.image = number / of_image_;
    tile.line = in_image / across_ * kOutputs;
    tile.column = in_image % across_ * kOutputs;
    const float* image = x_ + tile.image * vertical_.in * horizontal_.in * channels_;
    const float** pixel = tile.pixels;
    for (int64_t y = tile.line - vertical_.before; pixel < tile.pixels + kPoints; ++y) {
      const bool outside = y < 0 || y >= vertical_.in;
      for (int64_t x = tile.column - horizontal_.before, i = 0; i < winograd::kTile; ++i, ++x, ++pixel)
        *pixel = outside || x < 0 || x >= horizontal_.in ? padding : image + (y * horizontal_.in + x) * channels_;
    }
    return tile;
  }

  template <class F>
  void RunPiece(const F& formula, const Piece& piece) const {
    static thread_local gemm::AlignedBuffer points_buffer, sums_buffer, padding_buffer;
    const int64_t tiles = piece.end - piece.begin, panels = piece.panel_end - piece.panel_begin;
    constexpr int64_t kFloat = sizeof(float);
    float* padding = static_cast<float*>(padding_buffer.Reserve(channels_ * kFloat));
    std::fill_n(padding, channels_, 0.0f);
    float* points = static_cast<float*>(points_buffer.Reserve(kPoints * tiles * pitch_ * kFloat));
    float* sums = static_cast<float*>(sums_buffer.Reserve(kPoints * panels * tiles * kWidth * kFloat));
    for (int64_t t = 0; t < tiles; ++t) {
      const Tile tile = TileAt(piece.begin + t, padding);
      for (int64_t next = 0; next < channels_; next += kLanes) {
        const int64_t channel = std::min(next, channels_ - kLanes);  // the last vector overlaps
        winograd::TransformPixels(tile.pixels, channel, points + t * pitch_ + channel, tiles * pitch_);
      }
    }
    Multiply(points, piece, sums);
    for (int64_t t = 0; t < tiles; ++t) {
      StoreTile(formula, TileAt(piece.begin + t, padding), piece, sums + t * kWidth, tiles * kWidth,
                panels * tiles * kWidth);
    }
  }

  // Of each point and panel, [tiles, kWidth].
  void Multiply(const float* points, const Piece& piece, float* sums) const {
    const gemm::MicroKernel& kernel = *gemm::FloatKernel(gemm::PanelFormat::kFloat32);
    const int64_t tiles = piece.end - piece.begin, slivers = (tiles + kernel.sliver_rows - 1) / kernel.sliver_rows;
    constexpr int64_t kRowBytes = kWidth * sizeof(float);
    const int64_t panel_bytes = channels_ * kRowBytes, step = (kRowBytes + slivers - 1) / slivers;
    for (int64_t point = 0; point < kPoints; ++point, points += tiles * pitch_) {
      const char* panel = PanelAt(point, piece.panel_begin);
      for (int64_t p = piece.panel_begin; p < piece.panel_end; ++p, panel += panel_bytes) {
        const bool last = p + 1 == piece.panel_end;
        // While a panel is multiplied the next one is read.
        const char* next =
            last ? PanelAt(std::min<int64_t>(point + 1, kPoints - 1), piece.panel_begin) : panel + panel_bytes;
        for (int64_t s = 0; s < slivers; ++s, next += channels_ * step) {
          const int64_t first = s * tiles / slivers, rows = (s + 1) * tiles / slivers - first;
          kernel.functions[rows](
              {points + first * pitch_, pitch_ * static_cast<int64_t>(sizeof(float)), gemm::kChunkBytes}, panel,
              {next, step}, channels_, sums, false);
          sums += rows * kWidth;
        }
      }
    }
  }

  const char* PanelAt(int64_t point, int64_t panel) const {
    const int64_t number = point * gemm::PanelCount(finish_.channels) + panel;
    return static_cast<const char*>(weight_.data) + number * channels_ * kWidth * static_cast<int64_t>(sizeof(float));
  }

  // The outputs of a tile from its sums, the first panel's at `sums`, those of points `pitch` apart.
  template <class F>
  void StoreTile(const F& formula, const Tile& tile, const Piece& piece, const float* sums, int64_t panel_pitch,
                 int64_t pitch) const {
    alignas(64) float outputs[kOutputs * kOutputs * kWidth];
    gemm::Vec zeros = {};  // or no numbers
    for (int64_t p = piece.panel_begin; p < piece.panel_end; ++p, sums += panel_pitch) {
#pragma GCC unroll 2
      for (int v = 0; v < kWidth; v += kLanes) {
        gemm::Vec out[kOutputs * kOutputs];
        winograd::TransformSums(sums + v, pitch, out);
        for (int i = 0; i < kOutputs * kOutputs; ++i) *reinterpret_cast<gemm::Vec*>(outputs + i * kWidth + v) = out[i];
        const gemm::Vec all = out[0] + out[1] + (out[2] + out[3]);
        zeros += all - all;
      }
      StoreOutputs(formula, tile, p, outputs);
    }
    float finite = 0;
    for (int i = 0; i < kLanes; ++i) finite += zeros[i];
    if (finite == 0.0f) return;
    for (int64_t p = piece.panel_begin; p < piece.panel_end; ++p) {
      SumTaps(tile, p, outputs);
      StoreOutputs(formula, tile, p, outputs);
    }
  }

  template <class F>
  void StoreOutputs(const F& formula, const Tile& tile, int64_t panel, const float* outputs) const {
    const int64_t channel = panel * kWidth, count = std::min<int64_t>(kWidth, finish_.channels - channel);
    const BlockBias<kWidth> bias(bias_, channel, count);
    const int64_t lines = std::min<int64_t>(kOutputs, vertical_.out - tile.line);
    const int64_t columns = std::min<int64_t>(kOutputs, horizontal_.out - tile.column);
    for (int64_t y = 0; y < lines; ++y) {
      const int64_t pixel = (tile.image * vertical_.out + tile.line + y) * horizontal_.out + tile.column;
      finish_.Store<kWidth>(formula, outputs + y * kOutputs * kWidth, columns, bias.data(), pixel, channel, count);
    }
  }

  // The 2 × 2 outputs of a panel as the convolution defines them.
  void SumTaps(const Tile& tile, int64_t panel, float* outputs) const {
    std::fill_n(outputs, kOutputs * kOutputs * kWidth, 0.0f);
    const float* points[kPoints];
    for (int p = 0; p < kPoints; ++p) points[p] = reinterpret_cast<const float*>(PanelAt(p, panel));
    for (int64_t c = 0; c < channels_; ++c) {
      for (int64_t v = 0; v < kWidth; v += kLanes) {
        gemm::Vec transformed[kPoints], taps[winograd::kTaps];
        for (int p = 0; p < kPoints; ++p)
          transformed[p] = *reinterpret_cast<const gemm::Vec*>(points[p] + c * kWidth + v);
        winograd::RestoreTaps(transformed, taps);
        for (int o = 0; o < kOutputs * kOutputs; ++o) {
          gemm::Vec* sum = reinterpret_cast<gemm::Vec*>(outputs + o * kWidth + v);
          for (int t = 0; t < winograd::kTaps; ++t)
            *sum += taps[t] * tile.pixels[winograd::kTile * (o / kOutputs + t / 3) + o % kOutputs + t % 3][c];
        }
      }
    }
  }

  Axis vertical_, horizontal_;
  int64_t images_, channels_;
  const float* x_;
  gemm::PackedMatrix weight_;
  const float* bias_;
  Finish<float> finish_;
  int64_t across_, of_image_;  // tiles
  int64_t pitch_;              // of the points of a tile
};

}  // namespace npu::channels_last
