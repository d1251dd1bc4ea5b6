// Quantisation with scales taken from the values: npu_dynamic_quant and its asymmetric form.
#pragma once

#include <string>

#include "ep/kernels/quantization/quantize.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class DynamicQuant {
 public:
  DynamicQuant(const char* op, bool asymmetric, const KernelInfo& info);

  // Inputs: the values, smooth_scales and group_index; outputs: y, scale and, of the asymmetric form, offset.
  void Compute(OpContext& ctx) const;

 private:
  enum class Mode { kPerToken, kPerChannel, kPerTensor };

  void CheckSmoothScales(const TensorView& input, const TensorView& smooth, const TensorView& groups) const;
  Shape ScaleShape(const Shape& input) const;

  const char* op_;
  bool asymmetric_;
  QuantizedType type_;
  Mode mode_;
  std::string mode_name_;
  double type_max_;
};

}  // namespace npu
