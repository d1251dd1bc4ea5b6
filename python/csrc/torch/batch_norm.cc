// Batch normalisation, composed of the device's kernels; 16-bit floats are computed in float and rounded once. torch's
// schemas do not mark the running statistics as written, so a fallback to the CPU would lose them.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
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

std::tuple<at::Tensor, at::Tensor, at::Tensor> BatchNorm(const at::Tensor& input, const MaybeTensor& weight,
                                                         const MaybeTensor& bias, const MaybeTensor& running_mean,
                                                         const MaybeTensor& running_var, bool training, double momentum,
                                                         double epsilon) {
  if (!training) {
    TORCH_CHECK(Has(running_mean) && Has(running_var),
                "batch_norm expected running_mean and running_var in evaluation mode, got None");
    const at::Tensor none = at::empty({0}, Wide(*running_mean).options());
    const at::Tensor inverse_deviation = (Wide(*running_var) + epsilon).rsqrt();
    return {Normalize(input, weight, bias, *running_mean, inverse_deviation), none, none};
  }
  const Channels channels(input);
  const auto [mean, variance] = MeanAndVariance(input, channels);
  const at::Tensor inverse_deviation = (variance + epsilon).rsqrt();
  const double n = static_cast<double>(channels.count);
  Blend(running_mean, mean, momentum);
  Blend(running_var, variance * (n / (n - 1)), momentum);
  return {Normalize(input, weight, bias, mean, inverse_deviation), mean, inverse_deviation};
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
  const auto [sum, sum_centred, grad_weight, grad_bias] =
      BackwardReduce(grad, input, mean, inverse, weight, true, wanted[1], wanted[2]);
  at::Tensor grad_input;
  if (wanted[0] && training) {
    const at::Tensor count = at::empty({1}, sum.options()).fill_(Channels(input).count);
    grad_input = BackwardElemt(grad, input, mean, inverse, weight, sum, sum_centred, count);
  } else if (wanted[0]) {
    const Channels channels(input);
    const at::Tensor scale = Has(weight) ? Wide(*weight) * inverse : inverse;
    grad_input = (Wide(grad) * channels.Spread(scale)).to(input.scalar_type());
  }
  return {grad_input, grad_weight, grad_bias};
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
