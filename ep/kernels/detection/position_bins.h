// Bins of position-sensitive pooling: a region is divided into g x g bins, and each bin has a channel of its own.
#pragma once

#include <algorithm>
#include <cmath>

#include "ep/runtime/kernel_api.h"

namespace npu::detection {

// The whole pixels that a bin covers along one axis.
struct PixelRange {
  int64_t begin, end;

  // Bin `i` of `bins` between two coordinates of pixels, both inside the region.
  static PixelRange Of(double low, double high, double scale, int64_t i, int64_t bins, int64_t extent) {
    const double start = std::floor(low + 0.5) * scale, stop = (std::floor(high + 0.5) + 1) * scale;
    const double length = stop - start, bin = (length < 0.1 ? 0.1 : length) / static_cast<double>(bins);
    return {Inside(std::floor(static_cast<double>(i) * bin + start), extent),
            Inside(std::ceil(static_cast<double>(i + 1) * bin + start), extent)};
  }

  int64_t size() const { return end > begin ? end - begin : 0; }

 private:
  static int64_t Inside(double position, int64_t extent) {
    return position > 0 ? static_cast<int64_t>(std::min(position, static_cast<double>(extent))) : 0;
  }
};

struct PositionBins {
  double scale;
  int64_t groups, channels;  // bins along an axis; channels of the result
  int64_t images, height, width;
  int64_t batch, regions;  // of the regions [batch, 5, regions]

  // The channels of a map that has one for every bin of every channel of the result.
  int64_t MapChannels() const { return channels * groups * groups; }
  int64_t Bins() const { return batch * regions * MapChannels(); }

  // Calls f(plane, rows, columns) for the bin `i` of the result [batch * regions, channels, groups, groups]; plane is
  // -1 if the region's image is not there.
  template <class F>
  void At(const float* values, int64_t i, F f) const {
    const int64_t roi = i / MapChannels(), channel = i % MapChannels();
    const float* region = values + roi / regions * 5 * regions + roi % regions;
    const double image = region[0];
    const bool there = image >= 0 && image < static_cast<double>(images);
    const auto of = [&](int axis, int64_t bin, int64_t extent) {
      return PixelRange::Of(region[axis * regions], region[(axis + 2) * regions], scale, bin, groups, extent);
    };
    f(there ? static_cast<int64_t>(image) * MapChannels() + channel : -1, of(2, channel / groups % groups, height),
      of(1, channel % groups, width));
  }
};

}  // namespace npu::detection
