// RoiAlign: bins of a region, each the mean of bilinear samples. Shared by the operators that pool regions: a kernel
// reads its regions, asks Locate for the samples, and pools or spreads plane by plane.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu::detection {

// How the coordinates of a region become positions in a plane, and how many samples a bin has.
struct RoiSampling {
  int64_t height, width;  // of the pooled region, in bins
  int64_t samples;        // of a bin along each axis; 0 or less: as many as the bin has pixels, rounded up
  double scale, offset;   // position = coordinate * scale - offset
  bool at_least_one;      // a region counts at least one pixel along each axis
};

// A region in the coordinates of the image.
struct Region {
  double x1, y1, x2, y2;
};

// One sample along an axis: values at two positions with their weights, which are divided by the samples of the bin.
// C, here and below: what is computed in, float or double.
template <class C>
struct AxisSample {
  int32_t low, high;
  C of_low, of_high;
};

// More samples of a bin than a plane is worth: a region of a hostile size.
inline constexpr double kMostSamples = 4096;

// The samples of all bins along one axis. A sample outside the plane by more than one, or NaN, counts 0.
template <class C>
class AxisSamples {
 public:
  // Returns false if a bin would have more than kMostSamples.
  bool Locate(double start, double length, int64_t bins, int64_t samples, int64_t extent) {
    const double bin = length / static_cast<double>(bins);
    const double wanted = samples > 0 ? static_cast<double>(samples) : std::ceil(bin);
    if (!(wanted <= kMostSamples)) return false;
    per_bin_ = std::max<int64_t>(static_cast<int64_t>(wanted), 0);
    taps_.resize(static_cast<size_t>(bins * per_bin_));
    first_ = extent;
    last_ = -1;
    for (int64_t i = 0; i < bins * per_bin_; ++i) {
      const double within = (static_cast<double>(i % per_bin_) + 0.5) * bin / static_cast<double>(per_bin_);
      taps_[static_cast<size_t>(i)] = At(start + static_cast<double>(i / per_bin_) * bin + within, extent);
    }
    return true;
  }

  int64_t per_bin() const { return per_bin_; }
  const AxisSample<C>* bin(int64_t i) const { return taps_.data() + i * per_bin_; }
  // The positions from the first to the last that any sample reads; empty if none reads any.
  int64_t first() const { return first_; }
  int64_t end() const { return last_ + 1; }

 private:
  AxisSample<C> At(double position, int64_t extent) {
    const double size = static_cast<double>(extent);
    if (!(position >= -1 && position <= size) || extent == 0) return {0, 0, 0, 0};
    position = std::clamp(position, 0.0, size - 1);
    const auto low = static_cast<int64_t>(position), high = std::min(low + 1, extent - 1);
    first_ = std::min(first_, low);
    last_ = std::max(last_, high);
    const double rest = position - static_cast<double>(low), part = 1 / static_cast<double>(per_bin_);
    return {static_cast<int32_t>(low), static_cast<int32_t>(high), static_cast<C>((1 - rest) * part),
            static_cast<C>(rest * part)};
  }

  int64_t per_bin_ = 0, first_ = 0, last_ = -1;
  std::vector<AxisSample<C>> taps_;
};

// Where the bins of one region have their samples.
template <class C>
class RoiSamplesOf {
 public:
  // Returns false for a region of more than kMostSamples a bin.
  bool Locate(const Region& region, const RoiSampling& by, int64_t plane_height, int64_t plane_width) {
    by_ = by;
    const double x = region.x1 * by.scale - by.offset, y = region.y1 * by.scale - by.offset;
    const double least = by.at_least_one ? 1.0 : -INFINITY;
    const double width = Side(region.x2 * by.scale - by.offset - x, least);
    const double height = Side(region.y2 * by.scale - by.offset - y, least);
    return rows_.Locate(y, height, by.height, by.samples, plane_height) &&
           columns_.Locate(x, width, by.width, by.samples, plane_width);
  }

  // Writes the mean of every bin; `room` has plane_width values. The columns that samples read are summed over the rows
  // of a bin first, side by side.
  void Pool(const C* plane, int64_t plane_width, C* room, C* pooled) const {
    for (int64_t i = 0; i < by_.height; ++i) {
      std::fill(room + columns_.first(), room + std::max(columns_.first(), columns_.end()), C{0});
      for (int64_t k = 0; k < rows_.per_bin(); ++k) {
        const AxisSample<C> tap = rows_.bin(i)[k];
        if (tap.of_low == 0 && tap.of_high == 0) continue;
        const C *low = plane + tap.low * plane_width, *high = plane + tap.high * plane_width;
        for (int64_t x = columns_.first(); x < columns_.end(); ++x)
          room[x] += tap.of_low * low[x] + tap.of_high * high[x];
      }
      for (int64_t j = 0; j < by_.width; ++j) {
        C sum = 0;
        for (int64_t k = 0; k < columns_.per_bin(); ++k) {
          const AxisSample<C> tap = columns_.bin(j)[k];
          if (tap.of_low == 0 && tap.of_high == 0) continue;
          sum += tap.of_low * room[tap.low] + tap.of_high * room[tap.high];
        }
        *pooled++ = sum;
      }
    }
  }

  // Writes the greatest of the products of a value and its weight that the samples of each bin have, 0 for a bin
  // without samples: not the greatest sample, but what ONNX's reference and onnxruntime compute.
  void PoolMax(const C* plane, int64_t plane_width, C* pooled) const {
    const auto count = static_cast<C>(rows_.per_bin() * columns_.per_bin());  // the weights were divided by it
    for (int64_t i = 0; i < by_.height; ++i) {
      for (int64_t j = 0; j < by_.width; ++j) {
        C best = count > 0 ? -std::numeric_limits<C>::infinity() : C{0};
        for (int64_t k = 0; k < rows_.per_bin() * columns_.per_bin(); ++k) {
          const AxisSample<C> y = rows_.bin(i)[k / columns_.per_bin()], x = columns_.bin(j)[k % columns_.per_bin()];
          const auto part = [&](C of_row, C of_column, int64_t row, int64_t column) {
            const C weight = of_row * of_column * count;
            return weight == 0 ? C{0} : weight * plane[row * plane_width + column];  // a sample outside reads nothing
          };
          best = std::max({best, part(y.of_low, x.of_low, y.low, x.low), part(y.of_low, x.of_high, y.low, x.high),
                           part(y.of_high, x.of_low, y.high, x.low), part(y.of_high, x.of_high, y.high, x.high)});
        }
        *pooled++ = best;
      }
    }
  }

  // The transpose: adds what each bin's gradient gives to the plane.
  void Spread(const C* pooled, int64_t plane_width, C* room, C* plane) const {
    for (int64_t i = 0; i < by_.height; ++i, pooled += by_.width) {
      std::fill(room + columns_.first(), room + std::max(columns_.first(), columns_.end()), C{0});
      for (int64_t j = 0; j < by_.width; ++j) {
        for (int64_t k = 0; k < columns_.per_bin(); ++k) {
          const AxisSample<C> tap = columns_.bin(j)[k];
          if (tap.of_low == 0 && tap.of_high == 0) continue;
          room[tap.low] += tap.of_low * pooled[j];
          room[tap.high] += tap.of_high * pooled[j];
        }
      }
      for (int64_t k = 0; k < rows_.per_bin(); ++k) {
        const AxisSample<C> tap = rows_.bin(i)[k];
        if (tap.of_low == 0 && tap.of_high == 0) continue;
        C *low = plane + tap.low * plane_width, *high = plane + tap.high * plane_width;
        for (int64_t x = columns_.first(); x < columns_.end(); ++x) {
          low[x] += tap.of_low * room[x];
          high[x] += tap.of_high * room[x];
        }
      }
    }
  }

 private:
  static double Side(double length, double least) { return length < least ? least : length; }

  RoiSampling by_{};
  AxisSamples<C> rows_, columns_;
};
using RoiSamples = RoiSamplesOf<float>;

// The planes of a feature map [images, channels, height, width] and the regions that are pooled from it.
template <class C>
struct PooledPlanesOf {
  const C* features;
  int64_t regions, channels, height, width;
  C* pooled;  // [regions, channels, bins]
  int64_t bins;

  // `locate(region, samples)` returns the image of a region, -1 for one of zeros, and `pool(samples, plane, room,
  // pooled)` writes its bins in one plane; `room` has `width` values.
  template <class Locate, class Pool>
  void Run(const Locate& locate, const Pool& pool) const {
    constexpr int64_t kGrain = 16;  // planes of a region that are worth another thread
    ParallelFor(regions * channels, kGrain, [&](int64_t begin, int64_t end) {
      RoiSamplesOf<C> samples;
      std::vector<C> room(static_cast<size_t>(width));
      int64_t located = -1, image = -1;
      for (int64_t i = begin; i < end; ++i) {
        if (const int64_t region = i / channels; region != located) {
          located = region;
          image = locate(region, samples);
        }
        C* to = pooled + i * bins;
        if (image < 0) {
          std::fill_n(to, bins, C{0});
        } else {
          pool(samples, features + (image * channels + i % channels) * height * width, room.data(), to);
        }
      }
    });
  }
};

using PooledPlanes = PooledPlanesOf<float>;

// The region of row `roi` [image, x1, y1, x2, y2] and the image that it names, -1 for none of `images`.
inline int64_t ImageOf(const float* roi, int64_t images) {
  return roi[0] >= 0 && roi[0] < static_cast<float>(images) ? static_cast<int64_t>(roi[0]) : -1;
}

}  // namespace npu::detection
