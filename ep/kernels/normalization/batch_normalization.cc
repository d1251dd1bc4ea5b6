// BatchNormalization (ai.onnx 9 to 15) with given statistics: a factor and a summand for each channel, computed in
// float (double for float64) and rounded once.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ep/kernels/elementwise/widen.h"
#include "ep/kernels/elementwise/widen_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "BatchNormalization";

// The values of a vector of any float type.
template <class C>
std::vector<C> ReadVector(const TensorView& view) {
  std::vector<C> values;
  DispatchTypes(kOp, view.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < view.elements(); ++i) values.push_back(static_cast<C>(Widened(view.as<const T>()[i])));
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
      WidenRow(from + begin, values, count);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) values[i] = values[i] * factor + summand;
      RoundRow(values, to + begin, count);
    });
  }
};

class BatchNormalizationKernel final : public Kernel {
 public:
  explicit BatchNormalizationKernel(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_CHECK(x.shape.rank() >= 1, "[", kOp, "] expected X [N, C, …], got a scalar");
    const int64_t channels = x.shape.rank() > 1 ? x.shape[1] : 1;
    const char* names[] = {"scale", "B", "mean", "var"};
    TensorView given[4];
    for (size_t i = 0; i < 4; ++i) {
      given[i] = ctx.Input(i + 1);
      NPU_CHECK(given[i].shape == Shape{channels}, "[", kOp, "] expected ", names[i], " of shape ", Shape{channels},
                ", got ", given[i].shape);
    }
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    const int64_t planes = x.shape[0] * channels;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const ScaleChannels<T> task{x.as<const T>(), y.as<T>(), planes,   channels, x.elements() / planes,
                                  given[0],        given[1],  given[2], given[3], epsilon_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  double epsilon_;
};

constexpr DTypeSet kEarlyFloats{DType::kFloat32, DType::kFloat16, DType::kFloat64};

std::string WhyNot(const NodeView& node) {
  for (size_t i = 1; i < node.output_used.size(); ++i)
    if (node.output_used[i]) return "BatchNormalization that returns statistics is not implemented";
  if (node.attributes.Int("training_mode", 0) != 0) return "BatchNormalization in training mode is not implemented";
  return "";
}

NPU_ONNX_KERNEL({
    .type = "BatchNormalization",
    .since = 9,
    .until = 9,
    .inputs = {Input("X", kEarlyFloats), Input("scale", kEarlyFloats), Input("B", kEarlyFloats),
               Input("mean", kEarlyFloats), Input("var", kEarlyFloats)},
    .outputs = {Output("Y", kEarlyFloats), OptionalOutput("mean", kEarlyFloats), OptionalOutput("var", kEarlyFloats),
                OptionalOutput("saved_mean", kEarlyFloats), OptionalOutput("saved_var", kEarlyFloats)},
    .attributes = {FloatAttribute("epsilon", 1e-5), FloatAttribute("momentum", 0.9)},
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
