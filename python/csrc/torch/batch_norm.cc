// Batch normalisation and its gradient by a kernel each, the parts of one over several processes composed of others;
// 16-bit floats are computed in float and rounded once. torch's schemas do not mark the running statistics as written,
// so a fallback to the CPU would lose them.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

// The dimensions of an input whose channels are dimension 1.
struct Channels {
  std::vector<int64_t> shape;   // of one value per channel, broadcastable to the input
  std::vector<int64_t> others;  // dimensions over which the statistics are computed
  int64_t count;                // elements per channel

  explicit Channels(const at::Tensor& input) : shape(static_cast<size_t>(input.dim()), 1) {
    TORCH_CHECK(input.dim() >= 2, "batch_norm expects at least 2 dimensions, got ", input.dim());
    shape[1] = input.size(1);
    for (int64_t d = 0; d < input.dim(); ++d)
      if (d != 1) others.push_back(d);
    count = input.size(1) == 0 ? 0 : input.numel() / input.size(1);
  }

  at::Tensor Spread(const at::Tensor& per_channel) const { return Wide(per_channel).view(shape); }
};

// Planes of channels: a matrix has them as columns.
at::Tensor Planes(const at::Tensor& t) { return t.dim() == 2 ? t.t().unsqueeze(0) : t; }

// running = (1 - momentum) * running + momentum * value
void Blend(const MaybeTensor& running, const at::Tensor& value, double momentum) {
  if (Has(running)) running->copy_(Wide(*running) * (1 - momentum) + value * momentum);
}

Two MeanAndVariance(const at::Tensor& input, const Channels& channels) {
  const at::Tensor wide = Wide(input);
  const at::Tensor mean = wide.mean(channels.others);
  return {mean, (wide - channels.Spread(mean)).pow(2).mean(channels.others)};
}

at::Tensor Normalize(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const at::Tensor& mean, const at::Tensor& inverse_deviation) {
  const Channels channels(input);
  at::Tensor result = (Wide(input) - channels.Spread(mean)) * channels.Spread(inverse_deviation);
  if (Has(weight)) result = result * channels.Spread(*weight);
  if (Has(bias)) result = result + channels.Spread(*bias);
  return result.to(input.scalar_type());
}

// The result, and the mean and the variance that it was computed with: the given ones, or those of the input.
std::array<at::Tensor, 3> Normalized(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                     const MaybeTensor& mean, const MaybeTensor& variance, double epsilon) {
  const at::Tensor beside = at::empty({input.size(1)}, input.options().dtype(AccumulateType(input.scalar_type())));
  const auto given = [&](const MaybeTensor& values, double otherwise) {
    return Has(values) ? Dense(*values) : at::full_like(beside, otherwise);
  };
  const bool training = !mean;
  at::Tensor result = at::empty_like(input);
  KernelCall call("BatchNormalization");
  call.In(Dense(Planes(input))).In(given(weight, 1)).In(given(bias, 0)).In(given(mean, 0)).In(given(variance, 0));
  call.Set("epsilon", epsilon);
  if (!training) {
    call.Into(Planes(result));
    return {result, *mean, *variance};
  }
  // Running statistics without momentum are those of the input.
  const at::Tensor own_mean = at::empty_like(beside), own_variance = at::empty_like(beside);
  call.Set("training_mode", int64_t{1}).Set("momentum", 0.0).Into({Planes(result), own_mean, own_variance});
  return {result, own_mean, own_variance};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNorm(const at::Tensor& input, const MaybeTensor& weight,
                                                         const MaybeTensor& bias, const MaybeTensor& running_mean,
                                                         const MaybeTensor& running_var, bool training, double momentum,
                                                         double epsilon) {
  const Channels channels(input);
  if (!training) {
    TORCH_CHECK(Has(running_mean) && Has(running_var),
                "batch_norm expected running_mean and running_var in evaluation mode, got None");
    const at::Tensor none = at::empty({0}, Wide(*running_mean).options());
    return {Normalized(input, weight, bias, running_mean, running_var, epsilon)[0], none, none};
  }
  if (input.numel() == 0) {
    const auto [mean, variance] = MeanAndVariance(input, channels);
    return {at::empty_like(input), mean, (variance + epsilon).rsqrt()};
  }
  const auto [result, mean, variance] = Normalized(input, weight, bias, std::nullopt, std::nullopt, epsilon);
  const double n = static_cast<double>(channels.count);
  Blend(running_mean, mean, momentum);
  Blend(running_var, variance * (n / (n - 1)), momentum);
  return {result, mean, (variance + epsilon).rsqrt()};
}

// The form that tracers emit.
std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNormLegit(const at::Tensor& input, const MaybeTensor& weight,
                                                              const MaybeTensor& bias, at::Tensor& running_mean,
                                                              at::Tensor& running_var, bool training, double momentum,
                                                              double epsilon) {
  return BatchNorm(input, weight, bias, running_mean, running_var, training, momentum, epsilon);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNormWithoutStatistics(const at::Tensor& input,
                                                                          const MaybeTensor& weight,
                                                                          const MaybeTensor& bias, bool training,
                                                                          double momentum, double epsilon) {
  return BatchNorm(input, weight, bias, std::nullopt, std::nullopt, training, momentum, epsilon);
}

// --- Parts of a normalisation over several processes (SyncBatchNorm)

Two Stats(const at::Tensor& input, double epsilon) {
  const auto [mean, variance] = MeanAndVariance(input, Channels(input));
  return {mean, (variance + epsilon).rsqrt()};
}

at::Tensor Elemt(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const at::Tensor& mean,
                 const at::Tensor& inverse_deviation, double) {
  return Normalize(input, weight, bias, mean, inverse_deviation);
}
at::Tensor& ElemtOut(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const at::Tensor& mean, const at::Tensor& inverse_deviation, double, at::Tensor& out) {
  return out.resize_(input.sizes()).copy_(Normalize(input, weight, bias, mean, inverse_deviation));
}

// Combines the statistics of several processes: one row per process, which had `counts` elements per channel.
Two GatherWithCounts(const at::Tensor&, const at::Tensor& means, const at::Tensor& inverse_deviations,
                     const MaybeTensor& running_mean, const MaybeTensor& running_var, double momentum, double epsilon,
                     const at::Tensor& counts) {
  const at::Tensor wide = Wide(means);
  const at::Tensor weights = counts.to(wide.scalar_type()).view({-1, 1});
  const at::Tensor total = weights.sum();
  const at::Tensor mean = (wide * weights).sum(0) / total;
  const at::Tensor variances = Wide(inverse_deviations).pow(-2) - epsilon;
  const at::Tensor spread = (weights * (variances + (wide - mean).pow(2))).sum(0);
  Blend(running_mean, mean, momentum);
  Blend(running_var, spread / (total - 1), momentum);
  return {mean, (spread / total + epsilon).rsqrt()};
}
Two GatherStats(const at::Tensor& input, const at::Tensor& means, const at::Tensor& inverse_deviations,
                const MaybeTensor& running_mean, const MaybeTensor& running_var, double momentum, double epsilon,
                int64_t count) {
  const at::Tensor counts = at::empty({means.size(0)}, Wide(means).options()).fill_(count);
  return GatherWithCounts(input, means, inverse_deviations, running_mean, running_var, momentum, epsilon, counts);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> BackwardReduce(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse_deviation,
    const MaybeTensor& weight, bool want_input, bool want_weight, bool want_bias) {
  const Channels channels(input);
  const at::Tensor wide = Wide(grad);
  const at::Tensor sum = wide.sum(channels.others);
  const at::Tensor sum_centred = (wide * (Wide(input) - channels.Spread(mean))).sum(channels.others);
  const at::ScalarType type = Has(weight) ? weight->scalar_type() : sum.scalar_type();
  return {want_input ? sum : at::Tensor(), want_input ? sum_centred : at::Tensor(),
          want_weight ? (sum_centred * Wide(inverse_deviation)).to(type) : at::Tensor(),
          want_bias ? sum.to(type) : at::Tensor()};
}

at::Tensor BackwardElemt(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                         const at::Tensor& inverse_deviation, const MaybeTensor& weight, const at::Tensor& sum,
                         const at::Tensor& sum_centred, const at::Tensor& counts) {
  const Channels channels(input);
  const at::Tensor total = counts.to(Wide(sum).scalar_type()).sum();
  const at::Tensor inverse = Wide(inverse_deviation);
  const at::Tensor slope = inverse.pow(2) * (Wide(sum_centred) / total);
  at::Tensor result =
      Wide(grad) - channels.Spread(Wide(sum) / total) - (Wide(input) - channels.Spread(mean)) * channels.Spread(slope);
  result = result * channels.Spread(inverse);
  if (Has(weight)) result = result * channels.Spread(*weight);
  return result.to(input.scalar_type());
}

// --- The gradient in one process

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three BatchNormBackward(const at::Tensor& grad, const at::Tensor& input, const MaybeTensor& weight,
                        const MaybeTensor& running_mean, const MaybeTensor& running_var, const MaybeTensor& saved_mean,
                        const MaybeTensor& saved_inverse_deviation, bool training, double epsilon,
                        std::array<bool, 3> wanted) {
  TORCH_CHECK(training ? Has(saved_mean) && Has(saved_inverse_deviation) : Has(running_mean) && Has(running_var),
              "batch_norm expected the statistics of its forward pass, got None");
  const at::Tensor mean = training ? *saved_mean : *running_mean;
  const at::Tensor inverse = training ? *saved_inverse_deviation : (Wide(*running_var) + epsilon).rsqrt();
  const at::ScalarType wide = AccumulateType(input.scalar_type());
  at::Tensor grad_input = at::empty_like(input), of_weight = at::empty({input.size(1)}, input.options().dtype(wide));
  at::Tensor of_bias = at::empty_like(of_weight);
  KernelCall call("BatchNormGrad", "npu.aten");
  call.In(Dense(Planes(grad), input.scalar_type())).In(Dense(Planes(input)));
  call.In(Dense(mean, wide)).In(Dense(inverse, wide));
  Has(weight) ? call.In(Dense(*weight, wide)) : call.Absent();
  call.Set("training", int64_t{training}).Into({Planes(grad_input), of_weight, of_bias});
  const at::ScalarType type = Has(weight) ? weight->scalar_type() : wide;
  return {wanted[0] ? grad_input : at::Tensor(), wanted[1] ? of_weight.to(type) : at::Tensor(),
          wanted[2] ? of_bias.to(type) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("native_batch_norm", &BatchNorm);
  m.impl("_native_batch_norm_legit", &BatchNormLegit);
  m.impl("_native_batch_norm_legit.no_stats", &BatchNormWithoutStatistics);
  m.impl("native_batch_norm_backward", &BatchNormBackward);
  m.impl("batch_norm_stats", &Stats);
  m.impl("batch_norm_elemt", &Elemt);
  m.impl("batch_norm_elemt.out", &ElemtOut);
  m.impl("batch_norm_gather_stats", &GatherStats);
  m.impl("batch_norm_gather_stats_with_counts", &GatherWithCounts);
  m.impl("batch_norm_backward_reduce", &BackwardReduce);
  m.impl("batch_norm_backward_elemt", &BackwardElemt);
}

}  // namespace
}  // namespace npu::aten
