// Samples of distributions whose parameters are tensors.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <limits>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

// The samples of `type` for parameters of one dtype and shape.
at::Tensor Sampled(const char* op, const char* type, std::initializer_list<at::Tensor> parameters,
                   const MaybeGenerator& generator) {
  const at::Tensor& first = *parameters.begin();
  KernelCall call(type, "npu.aten");
  TORCH_CHECK(call.Takes(0, first.scalar_type()), op, " expected a tensor of real floats, got ", first.scalar_type());
  for (const at::Tensor& parameter : parameters) call.In(Dense(parameter, first.scalar_type()));
  const int device = first.device().index();
  return call.HostScalar(static_cast<int64_t>(DrawSeed(SourceOf(generator, device), CurrentStream(device)))).One();
}

at::Tensor Poisson(const at::Tensor& self, MaybeGenerator generator) {
  return Sampled("poisson", "SamplePoisson", {self}, generator);
}
at::Tensor Binomial(const at::Tensor& count, const at::Tensor& prob, MaybeGenerator generator) {
  TORCH_CHECK(count.scalar_type() == prob.scalar_type(), "Found dtype ", prob.scalar_type(), " but expected ",
              count.scalar_type());
  const auto shape = at::infer_size(count.sizes(), prob.sizes());
  return Sampled("binomial", "SampleBinomial", {count.expand(shape), prob.expand(shape)}, generator);
}
at::Tensor StandardGamma(const at::Tensor& self, MaybeGenerator generator) {
  // 0 is outside of the distribution's support.
  const double least = self.scalar_type() == at::kDouble ? std::numeric_limits<double>::min()
                       : self.scalar_type() == at::kHalf ? 0x1p-14
                                                         : std::numeric_limits<float>::min();
  return Sampled("_standard_gamma", "SampleGamma", {self}, generator).clamp_min_(least);
}
at::Tensor StandardGammaGrad(const at::Tensor& self, const at::Tensor& output) {
  return FunctionOf("_standard_gamma_grad", Aten("GammaSampleGrad"), self, {self, output});
}
// Gamma numbers as parts of their sum, in double, where fewer of them are 0.
at::Tensor Dirichlet(const at::Tensor& self, MaybeGenerator generator) {
  TORCH_CHECK(self.is_floating_point(), "_sample_dirichlet expected a tensor of real floats, got ", self.scalar_type());
  const at::Tensor gammas = StandardGamma(self.to(at::kDouble), std::move(generator));
  return (gammas / gammas.sum(-1, /*keepdim=*/true))
      .clamp_min_(std::numeric_limits<double>::min())
      .to(self.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("poisson", &Poisson);
  m.impl("binomial", &Binomial);
  m.impl("_standard_gamma", &StandardGamma);
  m.impl("_standard_gamma_grad", &StandardGammaGrad);
  m.impl("_sample_dirichlet", &Dirichlet);
}

}  // namespace
}  // namespace npu::aten
