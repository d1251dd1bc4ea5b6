// The arguments that npu_roi_align and its gradient have in common.
#pragma once

#include "ep/kernels/detection/roi_align.h"
#include "ep/kernels/op_check.h"

namespace npu::detection {

struct RoiAlignArguments {
  RoiSampling sampling{};
  int64_t end_mode = 0;  // 0: corners as given; 1: the far corner's pixel is inside; 2: pixels are areas around points

  RoiAlignArguments(const KernelInfo& info, int64_t mode) : end_mode(mode) {
    const Attributes& a = info.attributes;
    const bool aligned = mode >= 2;
    sampling = {a.Int("pooled_height"),   a.Int("pooled_width"), a.Int("sample_num"),
                a.Float("spatial_scale"), aligned ? 0.5 : 0.0,   !aligned};
  }

  void Check(const char* op, const TensorView& rois) const {
    NPU_OP_CHECK(op, rois && rois.shape.rank() == 2 && rois.shape[1] == 5, "expected rois of shape [n, 5], got ",
                 rois.shape);
    constexpr int64_t kMost = 1 << 16;
    for (const int64_t size : {sampling.height, sampling.width}) {
      NPU_OP_CHECK(op, size > 0 && size <= kMost, "expected pooled_height and pooled_width from 1 to ", kMost, ", got ",
                   sampling.height, " and ", sampling.width);
    }
    NPU_OP_CHECK(op, static_cast<double>(sampling.samples) <= kMostSamples, "expected at most ", kMostSamples,
                 " for sample_num, got ", static_cast<double>(sampling.samples));
    NPU_OP_CHECK(op, end_mode >= 0 && end_mode <= 2, "expected roi_end_mode 0, 1 or 2, got ", end_mode);
  }

  // In the launch: the samples of row `roi`.
  void Locate(const char* op, const float* roi, int64_t height, int64_t width, RoiSamples& samples) const {
    const double end = end_mode == 1 ? 1 : 0;
    const Region region{roi[1], roi[2], roi[3] + end, roi[4] + end};
    NPU_OP_CHECK(op, samples.Locate(region, sampling, height, width), "expected regions of at most ", kMostSamples,
                 " samples a bin and axis, got more; pass a positive sample_num");
  }
};

}  // namespace npu::detection
