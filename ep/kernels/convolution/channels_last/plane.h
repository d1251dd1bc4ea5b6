// The pixels that a convolution reads, as few long rows where it reads one pixel for each output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/pooling/windows.h"
#include "ep/runtime/kernel_api.h"

namespace npu::channels_last {

// The images, or the same pixels in other rows, the last of which may have fewer.
struct Plane {
  std::vector<pooling::Axis> axes;
  int64_t images;
  int64_t outputs;  // of all images
};

// If every output reads its own pixel, rows may be of any length: of one that fits `bytes`, is a number of whole tiles
// and of whole lines of planes, and gives every thread several rows.
inline Plane PlaneOf(const std::vector<pooling::Axis>& axes, int64_t images, int64_t pixel_bytes, int64_t bytes) {
  constexpr int64_t kWhole = 48, kRowsOfThread = 8;
  const int64_t outputs = images * axes[0].out * axes[1].out;
  for (const pooling::Axis& axis : axes)
    if (axis.kernel != 1 || axis.stride != 1 || axis.before != 0 || axis.in != axis.out) return {axes, images, outputs};
  const int64_t fitting = std::min(bytes / pixel_bytes, outputs / (NumThreads() * kRowsOfThread));
  int64_t width = std::max(fitting / kWhole, int64_t{1}) * kWhole;
  if (outputs <= width * NumThreads()) width = outputs;  // threads share the channels
  pooling::Axis vertical = axes[0], horizontal = axes[1];
  vertical.in = vertical.out = (outputs + width - 1) / width;
  horizontal.in = horizontal.out = width;
  return {{vertical, horizontal}, 1, outputs};
}

}  // namespace npu::channels_last
