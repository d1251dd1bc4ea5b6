// BatchNormalization (ai.onnx 7 to 15): a factor and a summand for each channel, computed in float (double for float64)
// and rounded once. The statistics are given, or in training mode those of the batch, whose sums are in double, but for
// a few elements at a time.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ep/kernels/early_floats.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/row_sum.h"

namespace npu {
namespace {

constexpr const char* kOp = "BatchNormalization";

// The values of a vector of any float type.
template <class C>
std::vector<C> ReadVector(const TensorView& view) {
  std::vector<C> values;
  DispatchTypes(kOp, view.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < view.elements(); ++i) values.push_back(static_cast<C>(Upcast(view.as<const T>()[i])));
  });
  return values;
}

template <class T>
struct ScaleChannels {
  using C = ComputeType<T>;
  const T* x;
  T* y;
  int64_t planes, channels, positions;
  TensorView scale, bias, mean, variance;
  double epsilon;

  void Run() const {
    std::vector<C> factor = ReadVector<C>(scale), summand = ReadVector<C>(bias);
    const std::vector<C> means = ReadVector<C>(mean), variances = ReadVector<C>(variance);
    for (size_t c = 0; c < factor.size(); ++c) {
      factor[c] /= std::sqrt(variances[c] + static_cast<C>(epsilon));
      summand[c] -= means[c] * factor[c];
    }
    ParallelFor(planes, RowGrain(positions), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const auto c = static_cast<size_t>(plane % channels);
        Plane(x + plane * positions, factor[c], summand[c], y + plane * positions);
      }
    });
  }

 private:
  void Plane(const T* from, C factor, C summand, T* to) const {
    ForEachBlock(positions, [&](int64_t begin, int64_t count) {
      alignas(64) C values[kRowBlock];
      UpcastRow(from + begin, values, count);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) values[i] = values[i] * factor + summand;
      RoundRow(values, to + begin, count);
    });
  }
};

// Mean and variance of a channel of [N, C, positions], summed in double across blocks.
struct ChannelMoments {
  double mean, variance;
};

template <class T>
ChannelMoments MomentsOf(const T* x, int64_t planes, int64_t channels, int64_t positions, int64_t channel) {
  using C = ComputeType<T>;
  const auto sum_of = [&](auto term) {
    double total = 0;
    for (int64_t plane = channel; plane < planes; plane += channels) {
      const T* from = x + plane * positions;
      ForEachBlock(positions, [&](int64_t begin, int64_t count) {
        alignas(64) C values[kRowBlock];
        UpcastRow(from + begin, values, count);
        total += static_cast<double>(SumOf(values, count, term));
      });
    }
    return total;
  };
  const auto n = static_cast<double>(planes / channels * positions);
  const double mean = sum_of([](auto v) { return v; }) / n;
  const C centre = static_cast<C>(mean);
  return {mean, sum_of([centre](auto v) { return (v - centre) * (v - centre); }) / n};
}

// Statistics of a batch, and the running ones that follow from them.
template <class T>
struct BatchStatistics {
  using C = ComputeType<T>;
  const T* x;
  int64_t planes, channels, positions;
  double momentum;
  TensorView given[2], running[2];  // mean, variance
  C* batch[2];

  void Run() const {
    ParallelFor(channels, RowGrain(planes / channels * positions), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const ChannelMoments moments = MomentsOf(x, planes, channels, positions, c);
        batch[0][c] = static_cast<C>(moments.mean);
        batch[1][c] = static_cast<C>(moments.variance);
      }
    });
    for (size_t i = 0; i < 2; ++i)
      if (running[i]) Update(given[i], batch[i], running[i]);
  }

 private:
  void Update(const TensorView& from, const C* now, const TensorView& to) const {
    DispatchTypes(kOp, from.dtype, FloatTypes{}, [&](auto type) {
      using S = decltype(type);
      for (int64_t c = 0; c < channels; ++c) {
        const auto before = static_cast<double>(Upcast(from.as<const S>()[c]));
        const double after = before * momentum + static_cast<double>(now[c]) * (1 - momentum);
        to.as<S>()[c] = Rounded<S>(static_cast<ComputeType<S>>(after));
      }
    });
  }
};

class BatchNormalizationKernel final : public Kernel {
 public:
  explicit BatchNormalizationKernel(const KernelInfo& info)
      : epsilon_(info.attributes.Float("epsilon")),
        momentum_(info.attributes.Float("momentum")),
        training_(info.attributes.Int("training_mode", 0) != 0) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1, "expected X [N, C, …], got a scalar");
    const int64_t channels = x.shape.rank() > 1 ? x.shape[1] : 1;
    const char* names[] = {"scale", "B", "mean", "var"};
    TensorView given[4];
    for (size_t i = 0; i < 4; ++i) {
      given[i] = ctx.Input(i + 1);
      NPU_OP_CHECK(kOp, given[i].shape == Shape{channels}, "expected ", names[i], " of shape ", Shape{channels},
                   ", got ", given[i].shape);
    }
    NPU_OP_CHECK(kOp, !training_ || x.elements() > 0, "expected elements to take statistics of, got X of shape ",
                 x.shape);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    const int64_t planes = x.shape[0] * channels;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      if (training_) TakeStatistics(ctx, x.as<const T>(), planes, channels, x.elements() / planes, given + 2);
      const ScaleChannels<T> task{x.as<const T>(), y.as<T>(), planes,   channels, x.elements() / planes,
                                  given[0],        given[1],  given[2], given[3], epsilon_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  // Replaces mean and variance, which are given, by those of the batch.
  template <class T>
  void TakeStatistics(OpContext& ctx, const T* x, int64_t planes, int64_t channels, int64_t positions,
                      TensorView* given) const {
    using C = ComputeType<T>;
    BatchStatistics<T> task{x, planes, channels, positions, momentum_, {given[0], given[1]}, {}, {}};
    for (size_t i = 0; i < 2; ++i) {
      if (ctx.OutputRequested(i + 1)) task.running[i] = ctx.Output(i + 1, given[i].dtype, given[i].shape);
      task.batch[i] = static_cast<C*>(ctx.Workspace(sizeof(C) * static_cast<size_t>(channels)));
      given[i] = {task.batch[i], DTypeOf<C>::value, true, Shape{channels}};
    }
    ctx.Launch(kOp, [task] { task.Run(); });
  }

  double epsilon_, momentum_;
  bool training_;
};

// Before opset 14, returned statistics are what asks for those of the batch, which onnxruntime does not implement
// either.
std::string WhyNot(const NodeView& node) {
  const bool training = node.attributes.Int("training_mode", 0) != 0;
  for (size_t i = 1; i < node.output_used.size(); ++i)
    if (node.output_used[i] && !training)
      return "BatchNormalization that returns statistics without training_mode is not implemented";
  if (node.attributes.Int("spatial", 1) == 0)
    return "BatchNormalization with statistics of each position is not implemented";
  return "";
}

NPU_ONNX_KERNEL({
    .type = "BatchNormalization",
    .since = 7,
    .until = 9,
    .inputs = {Input("X", kEarlyFloats), Input("scale", kEarlyFloats), Input("B", kEarlyFloats),
               Input("mean", kEarlyFloats), Input("var", kEarlyFloats)},
    .outputs = {Output("Y", kEarlyFloats), OptionalOutput("mean", kEarlyFloats), OptionalOutput("var", kEarlyFloats),
                OptionalOutput("saved_mean", kEarlyFloats), OptionalOutput("saved_var", kEarlyFloats)},
    .attributes = {FloatAttribute("epsilon", 1e-5), FloatAttribute("momentum", 0.9), IntAttribute("spatial", 1)},
    .make = MakeKernel<BatchNormalizationKernel>,
    .unsupported = WhyNot,
});
NPU_ONNX_KERNEL({
    .type = "BatchNormalization",
    .since = 14,
    .until = 15,
    .inputs = {Input("X", kAllFloats), Input("scale", kAllFloats), Input("B", kAllFloats),
               Input("input_mean", kAllFloats), Input("input_var", kAllFloats)},
    .outputs = {Output("Y", kAllFloats), OptionalOutput("running_mean", kAllFloats),
                OptionalOutput("running_var", kAllFloats)},
    .attributes = {FloatAttribute("epsilon", 1e-5), FloatAttribute("momentum", 0.9), IntAttribute("training_mode", 0)},
    .make = MakeKernel<BatchNormalizationKernel>,
    .unsupported = WhyNot,
});

}  // namespace
}  // namespace npu
