// The pixels that a convolution reads, as few long rows where it reads one pixel for each output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/pooling/windows.h"

namespace npu::channels_last {

// The images, or the same pixels in other rows.
struct Plane {
  std::vector<pooling::Axis> axes;
  int64_t images;
};

// If every output reads its own pixel, rows may be of any length: of one that fits `bytes` and needs few tiles.
inline Plane PlaneOf(const std::vector<pooling::Axis>& axes, int64_t images, int64_t pixel_bytes, int64_t bytes) {
  for (const pooling::Axis& axis : axes)
    if (axis.kernel != 1 || axis.stride != 1 || axis.before != 0 || axis.in != axis.out) return {axes, images};
  const int64_t rows = images * axes[0].in;
  const int64_t row_bytes = axes[1].in * pixel_bytes;
  int64_t together = std::clamp<int64_t>(bytes / row_bytes, 1, rows);
  while (rows % together != 0) --together;
  pooling::Axis vertical = axes[0], horizontal = axes[1];
  vertical.in = vertical.out = rows / together;
  horizontal.in = horizontal.out = horizontal.in * together;
  return {{vertical, horizontal}, 1};
}

}  // namespace npu::channels_last
