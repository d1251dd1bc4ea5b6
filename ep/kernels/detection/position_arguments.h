// The arguments that npu_ps_roi_pooling and its gradient have in common.
#pragma once

#include <limits>

#include "ep/kernels/detection/position_bins.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

struct PositionArguments {
  double scale;
  int64_t groups, channels;

  explicit PositionArguments(const KernelInfo& info)
      : scale(info.attributes.Float("spatial_scale")),
        groups(info.attributes.Int("group_size")),
        channels(info.attributes.Int("output_dim")) {}

  void CheckRegions(const char* op, const TensorView& rois) const {
    NPU_OP_CHECK(op, rois && rois.shape.rank() == 3 && rois.shape[1] == 5, "expected rois of shape [B, 5, R], got ",
                 rois.shape);
    NPU_OP_CHECK(op, groups > 0 && groups < 128, "expected group_size from 1 to 127, got ", groups);
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    NPU_OP_CHECK(op, channels > 0 && channels <= kMost, "expected output_dim from 1 to ", kMost, ", got ", channels);
  }

  void CheckMap(const char* op, const char* name, const Shape& shape) const {
    const int64_t expected = channels * groups * groups;
    NPU_OP_CHECK(op, shape.rank() == 4 && shape[1] == expected, "expected ", name, " [N, ", expected,
                 ", H, W], group_size^2 channels for each of output_dim, got ", shape);
  }

  Shape PooledShape(const Shape& rois) const { return {Shape{rois[0], rois[2]}.Elements(), channels, groups, groups}; }

  PositionBins Bins(const Shape& map, const Shape& rois) const {
    return {scale, groups, channels, map[0], map[2], map[3], rois[0], rois[2]};
  }
};

}  // namespace npu::detection
