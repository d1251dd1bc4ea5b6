// Random operators: one Philox generator per device, reproducible from its seed.
#include <ATen/core/Tensor.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <limits>
#include <numbers>
#include <tuple>

#include "python/csrc/torch/assertions.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

// Fills `self` from one of the library's distributions. One counter of the generator yields two elements.
template <class... Parameters>
at::Tensor& Fill(at::Tensor& self, const char* distribution, const MaybeGenerator& generator,
                 Parameters... parameters) {
  if (self.numel() == 0) return self;
  const auto& source = SourceOf(generator, self.device().index());  // throws for tensors on another device
  const PhiloxState position = DrawPosition(source, StreamOf(self), (static_cast<uint64_t>(self.numel()) + 1) / 2);
  KernelCall call(distribution, "npu.aten");
  call.Host({self.numel()})
      .HostScalar(static_cast<int64_t>(position.seed))
      .HostScalar(static_cast<int64_t>(position.offset));
  (call.HostScalar(parameters), ...);
  call.Set("dtype", static_cast<int64_t>(ToDType(self.scalar_type()))).Into(self);
  return self;
}

// Both parts of complex numbers are drawn.
at::Tensor& Uniform(at::Tensor& self, double from, double to, MaybeGenerator generator) {
  if (self.is_complex()) {
    at::view_as_real(self).uniform_(from, to, std::move(generator));
    return self;
  }
  TORCH_CHECK(self.is_floating_point(), "uniform_ expects a floating point tensor, got ", self.scalar_type());
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return Fill(self, "RandomUniform", generator, from, to);
}
// The variance of complex numbers is the sum of their parts'.
at::Tensor& Normal(at::Tensor& self, double mean, double deviation, MaybeGenerator generator) {
  if (self.is_complex()) {
    at::view_as_real(self).normal_(mean, deviation / std::numbers::sqrt2, std::move(generator));
    return self;
  }
  TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
  TORCH_CHECK(self.is_floating_point(), "normal_ expects a floating point tensor, got ", self.scalar_type());
  return Fill(self, "RandomNormal", generator, mean, deviation);
}
at::Tensor& Exponential(at::Tensor& self, double rate, MaybeGenerator generator) {
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  TORCH_CHECK(self.is_floating_point(),
              "Exponential distribution is a continuous probability distribution. dtype "
              "must be a floating point but you specified ",
              self.scalar_type());
  return Fill(self, "RandomExponential", generator, rate);
}
// Integers in first + [0, range); all 64 bits if range is 0.
at::Tensor& Integers(at::Tensor& self, int64_t first, uint64_t range, const MaybeGenerator& generator) {
  return Fill(self, "RandomIntegers", generator, first, static_cast<int64_t>(range));
}

// torch's rules for bounds (range of the dtype, rounding, None) with the device's fill.
template <typename>
struct IntegerFill {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t first, const MaybeGenerator& generator) const {
    at::Tensor self = iter.tensor(0);
    Integers(self, first, range, generator);
  }
  void operator()(at::TensorIteratorBase& iter, const MaybeGenerator& generator) const {
    (*this)(iter, 0, std::numeric_limits<int64_t>::lowest(), generator);  // every integer of 64 bits
  }
};

at::Tensor& RandomFromTo(at::Tensor& self, int64_t from, std::optional<int64_t> to, MaybeGenerator generator) {
  return at::native::templates::random_from_to_impl<IntegerFill, void>(self, from, to, std::move(generator));
}
at::Tensor& RandomTo(at::Tensor& self, int64_t to, MaybeGenerator generator) {
  return RandomFromTo(self, 0, to, std::move(generator));
}
// The number of integers from 0 to the max up to which the dtype represents every integer.
uint64_t WholeNumbers(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 2;
    case at::kByte:
      return uint64_t{1} << 8;
    case at::kChar:
      return uint64_t{1} << 7;
    case at::kShort:
      return uint64_t{1} << 15;
    case at::kInt:
      return uint64_t{1} << 31;
    case at::kHalf:
      return (uint64_t{1} << 11) + 1;
    case at::kBFloat16:
      return (uint64_t{1} << 8) + 1;
    case at::kFloat:
      return (uint64_t{1} << 24) + 1;
    case at::kDouble:
      return (uint64_t{1} << 53) + 1;
    default:
      return uint64_t{1} << 63;
  }
}
at::Tensor& Random(at::Tensor& self, MaybeGenerator generator) {
  return Integers(self, 0, WholeNumbers(self.scalar_type()), generator);
}

// 1 with probability p, which may be a tensor.
at::Tensor Bernoulli(at::IntArrayRef shape, const at::Tensor& p, const MaybeGenerator& generator,
                     const at::Tensor& beside) {
  at::Tensor uniform = Empty(shape, p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, beside);
  Uniform(uniform, 0, 1, generator);
  return KernelCall("Less").In(uniform).In(Dense(p, uniform.scalar_type())).One();
}
// Of tensors, when their turn comes.
at::Tensor CheckedProbabilities(const at::Tensor& p) {
  TORCH_CHECK(p.is_floating_point(), "expected probabilities tensor to have floating type, got ", p.scalar_type());
  const at::Tensor dense = Dense(p);
  AssertWithin(dense, 0, 1, "bernoulli expected probabilities from 0 to 1, got others");
  return dense;
}
void CheckProbability(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

at::Tensor& BernoulliFloat(at::Tensor& self, double p, MaybeGenerator generator) {
  CheckProbability(p);
  if (self.numel() == 0) return self;
  return self.copy_(Bernoulli(self.sizes(), ScalarTensor(p, at::kDouble, self), generator, self));
}
at::Tensor& BernoulliTensor(at::Tensor& self, const at::Tensor& p, MaybeGenerator generator) {
  if (self.numel() == 0) return self;
  return self.copy_(Bernoulli(self.sizes(), CheckedProbabilities(p.to(self.device())), generator, self));
}
at::Tensor& BernoulliOut(const at::Tensor& p, MaybeGenerator generator, at::Tensor& out) {
  at::native::resize_output(out, p.sizes());
  if (out.numel() == 0) return out;
  return out.copy_(Bernoulli(p.sizes(), CheckedProbabilities(p), generator, p));
}

std::tuple<at::Tensor, at::Tensor> Dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0 || input.numel() == 0)
    return {input.clone(), Empty(input.sizes(), at::kBool, input).fill_(true)};
  CheckProbability(p);
  const at::Tensor kept = Bernoulli(input.sizes(), ScalarTensor(1 - p, at::kDouble, input), std::nullopt, input);
  return {p == 1 ? input.mul(kept) : input.mul(kept).mul_(1 / (1 - p)), kept};
}
at::Tensor DropoutBackward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  return grad.mul(mask).mul_(scale);
}

// With every probability divided by an exponential random number of its own, each category is the max with its
// probability.
at::Tensor Multinomial(const at::Tensor& weights, int64_t count, bool replacement, MaybeGenerator generator) {
  TORCH_CHECK(weights.is_floating_point(),
              "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(weights.dim() == 1 || weights.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || count <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  const at::ScalarType dtype = AccumulateType(weights.scalar_type());
  at::Tensor chances = Dense(weights, dtype);
  if (weights.numel() != 0) {
    using Limits = std::numeric_limits<double>;
    AssertWithin(chances, 0, Limits::max(), "probability tensor contains either `inf`, `nan` or element < 0");
    AssertWithin(chances.sum(-1), Limits::denorm_min(), Limits::infinity(),
                 "invalid multinomial distribution (sum of probabilities <= 0)");
  }
  if (replacement && count > 1) {
    std::vector<int64_t> shape = weights.sizes().vec();
    shape.insert(shape.end() - 1, count);
    chances = chances.unsqueeze(-2).expand(shape);
  }
  at::Tensor races = Empty(chances.sizes(), dtype, weights);
  Exponential(races, 1, generator);
  const at::Tensor scores = chances.div(races);
  if (replacement && count > 1) return scores.argmax(-1);
  if (count == 1) return scores.argmax(-1, /*keepdim=*/true);
  return std::get<1>(scores.topk(count));
}

at::Tensor& MultinomialOut(const at::Tensor& weights, int64_t count, bool replacement, MaybeGenerator generator,
                           at::Tensor& out) {
  CheckOutputType(out, at::kLong);
  const at::Tensor drawn = Multinomial(weights, count, replacement, std::move(generator));
  at::native::resize_output(out, drawn.sizes());
  return out.copy_(drawn);
}

at::Tensor& RandpermOut(int64_t n, MaybeGenerator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  out.resize_({n});
  if (n == 0) return out;
  at::Tensor keys = Empty({n}, at::kDouble, out);
  Uniform(keys, 0, 1, generator);
  return out.copy_(keys.argsort());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("uniform_", &Uniform);
  m.impl("normal_", &Normal);
  m.impl("exponential_", &Exponential);
  m.impl("random_", &Random);
  m.impl("random_.from", &RandomFromTo);
  m.impl("random_.to", &RandomTo);
  m.impl("bernoulli_.float", &BernoulliFloat);
  m.impl("bernoulli_.Tensor", &BernoulliTensor);
  m.impl("bernoulli.out", &BernoulliOut);
  m.impl("native_dropout", &Dropout);
  m.impl("native_dropout_backward", &DropoutBackward);
  m.impl("multinomial", &Multinomial);
  m.impl("multinomial.out", &MultinomialOut);
  m.impl("randperm.generator_out", &RandpermOut);
}

}  // namespace
}  // namespace npu::aten
