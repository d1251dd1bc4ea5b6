// Normalisation of groups of channels: statistics in double, the rest in float, rounded once.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void CheckGroups(const at::Tensor& input, const MaybeTensor& per_channel, int64_t n, int64_t channels,
                 int64_t positions, int64_t groups) {
  TORCH_CHECK(IsRealFloat(input.scalar_type()), "native_group_norm expected real floats, got ", input.scalar_type());
  TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be divisible by ",
              "num_groups, but got input of shape ", input.sizes(), " and num_groups=", groups);
  TORCH_CHECK(n >= 0 && channels >= 0 && positions >= 0 && input.numel() == n * channels * positions,
              "native_group_norm expected ", n, " x ", channels, " x ", positions, " elements, got ", input.sizes());
  TORCH_CHECK(!Has(per_channel) || per_channel->numel() == channels,
              "Expected weight and bias to be vectors of size equal to the number of channels in input, but got ",
              per_channel->sizes(), " and input of shape ", input.sizes());
}

Three GroupNorm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t n,
                int64_t channels, int64_t positions, int64_t groups, double epsilon) {
  CheckGroups(input, weight, n, channels, positions, groups);
  CheckGroups(input, bias, n, channels, positions, groups);
  const at::ScalarType dtype = input.scalar_type(), wide = AccumulateType(dtype);
  const at::Tensor out = Empty(input.sizes(), dtype, input);
  const at::Tensor mean = Empty({n, groups}, wide, input), rstd = Empty({n, groups}, wide, input);
  const at::Tensor x = Dense(input), scale = Has(weight) ? Dense(*weight, wide) : at::Tensor(),
                   shift = Has(bias) ? Dense(*bias, wide) : at::Tensor();
  DispatchFloats(dtype, [&]<class T>(T) {
    using R = Real<T>;
    const auto numbers = [](const at::Tensor& t) {
      return t.defined() ? static_cast<const R*>(t.const_data_ptr()) : nullptr;
    };
    StreamOf(out).Launch(
        "group_norm",
        [=, rows = n * groups, each = channels / groups, from = static_cast<const T*>(x.const_data_ptr()),
         by = numbers(scale), plus = numbers(shift), to = static_cast<T*>(out.mutable_data_ptr()),
         means = static_cast<R*>(mean.mutable_data_ptr()), rstds = static_cast<R*>(rstd.mutable_data_ptr())] {
          const int64_t size = each * positions;
          ParallelFor(rows, 16384 / (size + 1) + 1, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              const T* in = from + row * size;
              double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
              for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(static_cast<R>(in[i]));
              const double centre = sum / static_cast<double>(size);
#pragma omp simd reduction(+ : squares)
              for (int64_t i = 0; i < size; ++i) {
                const double way = static_cast<double>(static_cast<R>(in[i])) - centre;
                squares += way * way;
              }
              means[row] = static_cast<R>(centre);
              rstds[row] = static_cast<R>(1 / std::sqrt(squares / static_cast<double>(size) + epsilon));
              for (int64_t k = 0; k < each; ++k) {
                const int64_t channel = row % groups * each + k;
                const R factor = by == nullptr ? rstds[row] : rstds[row] * by[channel];
                const R addend = plus == nullptr ? R{0} : plus[channel];
                for (int64_t i = k * positions; i < (k + 1) * positions; ++i)
                  to[row * size + i] = static_cast<T>((static_cast<R>(in[i]) - means[row]) * factor + addend);
              }
            }
          });
        });
  });
  return {out, mean, rstd};
}

Three GroupNormBackward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rstd,
                        const MaybeTensor& weight, int64_t n, int64_t channels, int64_t positions, int64_t groups,
                        std::array<bool, 3> wanted) {
  const std::vector<int64_t> split{n, groups, channels / groups, positions};
  const auto per_group = [&](const at::Tensor& t) { return Wide(t).reshape({n, groups, 1, 1}); };
  const at::Tensor g = Wide(grad).reshape(split);
  const at::Tensor x = (Wide(input).reshape(split) - per_group(mean)) * per_group(rstd);
  const bool scaled = Has(weight);
  const at::ScalarType type = scaled ? weight->scalar_type() : input.scalar_type();
  const auto per_channel = [&](const at::Tensor& t) { return t.sum({0, 3}).reshape({channels}).to(type); };
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) {
    const at::Tensor h = scaled ? g * Wide(*weight).reshape({1, groups, channels / groups, 1}) : g;
    const at::Tensor centred = h - h.mean({2, 3}, true) - x * (h * x).mean({2, 3}, true);
    grad_input = (per_group(rstd) * centred).to(input.scalar_type()).reshape(input.sizes());
  }
  if (wanted[1]) grad_weight = per_channel(g * x);
  if (wanted[2]) grad_bias = per_channel(g);
  return {grad_input, grad_weight, grad_bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("native_group_norm", &GroupNorm);
  m.impl("native_group_norm_backward", &GroupNormBackward);
}

}  // namespace
}  // namespace npu::aten
