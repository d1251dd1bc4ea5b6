// Distributions derived from uniform and normal numbers of the device's generator.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

at::Tensor NewLike(const at::Tensor& like, at::IntArrayRef size) { return at::empty(size, like.options()); }

void CheckDeviations(const at::Tensor& deviation) {
  TORCH_CHECK(deviation.numel() == 0 || deviation.min().ge(0).item<bool>(),
              "normal expects all elements of std >= 0.0");
}

at::Tensor NormalTensors(const at::Tensor& mean, const at::Tensor& deviation, MaybeGenerator generator) {
  CheckDeviations(deviation);
  const auto size = at::infer_size(mean.sizes(), deviation.sizes());
  return NewLike(mean, size).normal_(0, 1, std::move(generator)).mul_(deviation).add_(mean);
}
at::Tensor NormalMeans(const at::Tensor& mean, double deviation, MaybeGenerator generator) {
  return NewLike(mean, mean.sizes()).normal_(0, deviation, std::move(generator)).add_(mean);
}
at::Tensor NormalDeviations(double mean, const at::Tensor& deviation, MaybeGenerator generator) {
  CheckDeviations(deviation);
  return NewLike(deviation, deviation.sizes()).normal_(0, 1, std::move(generator)).mul_(deviation).add_(mean);
}

at::Tensor& NormalTensorsOut(const at::Tensor& mean, const at::Tensor& deviation, MaybeGenerator generator,
                             at::Tensor& out) {
  const at::Tensor made = NormalTensors(mean, deviation, std::move(generator));
  return out.resize_(made.sizes()).copy_(made);
}
at::Tensor& NormalMeansOut(const at::Tensor& mean, double deviation, MaybeGenerator generator, at::Tensor& out) {
  return out.resize_(mean.sizes()).copy_(NormalMeans(mean, deviation, std::move(generator)));
}
at::Tensor& NormalDeviationsOut(double mean, const at::Tensor& deviation, MaybeGenerator generator, at::Tensor& out) {
  return out.resize_(deviation.sizes()).copy_(NormalDeviations(mean, deviation, std::move(generator)));
}

// Uniform numbers in [0, 1) to be transformed: float for 16-bit floats and integers.
at::Tensor UniformLike(const at::Tensor& self, MaybeGenerator generator) {
  const at::ScalarType type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty(self.sizes(), self.options().dtype(type)).uniform_(0, 1, std::move(generator));
}

at::Tensor& Cauchy(at::Tensor& self, double median, double sigma, MaybeGenerator generator) {
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  TORCH_CHECK(self.is_floating_point(), "cauchy_ expects a floating point tensor, got ", self.scalar_type());
  return self.copy_(((UniformLike(self, std::move(generator)) - 0.5) * M_PI).tan() * sigma + median);
}
at::Tensor& LogNormal(at::Tensor& self, double mean, double deviation, MaybeGenerator generator) {
  TORCH_CHECK(deviation > 0, "log_normal_ expects std > 0.0, but found std=", deviation);
  TORCH_CHECK(self.is_floating_point(), "log_normal_ expects a floating point tensor, got ", self.scalar_type());
  const at::TensorOptions wide = self.options().dtype(AccumulateType(self.scalar_type()));
  return self.copy_(at::empty(self.sizes(), wide).normal_(mean, deviation, std::move(generator)).exp());
}
// The number of trials of probability p, up to and including the first success.
at::Tensor& Geometric(at::Tensor& self, double p, MaybeGenerator generator) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  const at::Tensor log_of_failing = (1 - UniformLike(self, std::move(generator))).log();  // of a number in (0, 1]
  return self.copy_((log_of_failing / std::log1p(-p)).ceil().clamp_min(1));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("normal.Tensor_Tensor", &NormalTensors);
  m.impl("normal.Tensor_float", &NormalMeans);
  m.impl("normal.float_Tensor", &NormalDeviations);
  m.impl("normal.Tensor_Tensor_out", &NormalTensorsOut);
  m.impl("normal.Tensor_float_out", &NormalMeansOut);
  m.impl("normal.float_Tensor_out", &NormalDeviationsOut);
  m.impl("cauchy_", &Cauchy);
  m.impl("log_normal_", &LogNormal);
  m.impl("geometric_", &Geometric);
}

}  // namespace
}  // namespace npu::aten
