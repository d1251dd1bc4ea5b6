// Images whose positions are weighted sums of another image's positions, each dimension by a table of its own: what
// enlarges, shrinks and pads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace npu::aten {

// The table of one dimension: an output's position is the sum of `count` of the input's.
struct Taps {
  int64_t inputs = 1;
  int64_t count = 1;
  std::vector<int64_t> from{0};  // [outputs, count]
  std::vector<double> weights;   // likewise; none: 1 each

  int64_t outputs() const { return static_cast<int64_t>(from.size()) / count; }
};

// `to` from `from`, by tables of its last one to three dimensions. Weights are for floats only.
void Resample(const char* op, std::vector<Taps> axes, const at::Tensor& from, at::Tensor& to);
// The gradient by the input, from the one by the output.
void ResampleBackward(const char* op, std::vector<Taps> axes, const at::Tensor& grad, at::Tensor& grad_input);

}  // namespace npu::aten
