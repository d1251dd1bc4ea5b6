// The gradient of torch's batch normalisation, from the statistics that it was computed with: of the input, and of the
// weight and the bias of each channel. Sums are in the type of the computation, float for 16-bit floats, in a block
// and in double across blocks.
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_sum.h"

namespace npu {
namespace {

constexpr const char* kOp = "BatchNormGrad";

// dx = scale * (dy - offset - (x - mean) * slope) of a channel.
struct Line {
  double mean, scale, offset, slope;
};

template <class T>
struct GradTask {
  using C = ComputeType<T>;
  const T *dy, *x;
  const C *mean, *inverse, *weight;  // of each channel; no weight: 1
  T* dx;
  C *dweight, *dbias;
  int64_t images, channels, positions;
  bool training;  // whether the statistics depend on x

  void Channel(int64_t c) const {
    double sum = 0.0, centred = 0.0;
    const C middle = mean[c];
    ForEachPair(c, [&](const C* grads, C* values, int64_t, int64_t count) {
      sum += static_cast<double>(SumOf(grads, count, [](auto v) { return v; }));
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) values[i] = grads[i] * (values[i] - middle);
      centred += static_cast<double>(SumOf(values, count, [](auto v) { return v; }));
    });
    const auto inverted = static_cast<double>(inverse[c]);
    dweight[c] = static_cast<C>(centred * inverted);
    dbias[c] = static_cast<C>(sum);
    const double scale = inverted * (weight == nullptr ? 1.0 : static_cast<double>(weight[c]));
    const auto n = static_cast<double>(images * positions);
    Store(c, training ? Line{middle, scale, sum / n, centred / n * inverted * inverted} : Line{middle, scale, 0, 0});
  }

 private:
  // Calls f(a block of dy and of x, where it begins in both, its length).
  template <class F>
  void ForEachPair(int64_t channel, const F& f) const {
    for (int64_t image = 0; image < images; ++image) {
      const int64_t plane = (image * channels + channel) * positions;
      ForEachUpcastPair(dy + plane, x + plane, positions, [&](C* grads, C* values, int64_t begin, int64_t count) {
        f(grads, values, plane + begin, count);
      });
    }
  }

  void Store(int64_t channel, const Line& line) const {
    const C middle = static_cast<C>(line.mean), scale = static_cast<C>(line.scale);
    const C offset = static_cast<C>(line.offset), slope = static_cast<C>(line.slope);
    ForEachPair(channel, [=, to = dx](C* grads, const C* values, int64_t at, int64_t count) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) grads[i] = scale * (grads[i] - offset - (values[i] - middle) * slope);
      RoundRow(grads, to + at, count);
    });
  }
};

class BatchNormGradKernel final : public Kernel {
 public:
  explicit BatchNormGradKernel(const KernelInfo& info) : training_(info.attributes.Bool("training")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(0), x = ctx.Input(1), weight = ctx.Input(4);
    NPU_OP_CHECK(kOp, dy && x && dy.dtype == x.dtype && dy.shape == x.shape && x.shape.rank() >= 2,
                 "expected grad and input [N, C, …] of one dtype and shape, got ", NameOf(dy.dtype), " ", dy.shape,
                 " and ", NameOf(x.dtype), " ", x.shape);
    const Shape of_channels{x.shape[1]};
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      const char* names[] = {"mean", "inverse deviation", "weight"};
      for (size_t i = 0; i < 3; ++i) {
        const TensorView given = ctx.Input(i + 2);
        NPU_OP_CHECK(kOp,
                     (i == 2 && !given) || (given && given.dtype == DTypeOf<C>::value && given.shape == of_channels),
                     "expected ", names[i], " ", NameOf(DTypeOf<C>::value), " ", of_channels, ", got ",
                     NameOf(given.dtype), " ", given.shape);
      }
      const TensorView dx = ctx.Output(0, x.dtype, x.shape);
      const TensorView dweight = ctx.Output(1, DTypeOf<C>::value, of_channels);
      const TensorView dbias = ctx.Output(2, DTypeOf<C>::value, of_channels);
      NPU_OP_CHECK(kOp, dx && dweight && dbias, "expected all gradients to be asked for");
      const int64_t images = x.shape[0], positions = x.shape.Elements(2, x.shape.rank());
      const GradTask<T> task{dy.as<const T>(),
                             x.as<const T>(),
                             ctx.Input(2).as<const C>(),
                             ctx.Input(3).as<const C>(),
                             weight ? weight.as<const C>() : nullptr,
                             dx.as<T>(),
                             dweight.as<C>(),
                             dbias.as<C>(),
                             images,
                             x.shape[1],
                             positions,
                             training_};
      ctx.Launch(kOp, [task] {
        ParallelFor(task.channels, RowGrain(task.images * task.positions), [&](int64_t begin, int64_t end) {
          for (int64_t c = begin; c < end; ++c) task.Channel(c);
        });
      });
    });
  }

 private:
  bool training_;
};

constexpr DTypeSet kStatistics{DType::kFloat32, DType::kFloat64};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = kOp,
    .inputs = {Input("grad", kAllFloats), Input("X", kAllFloats), Input("mean", kStatistics),
               Input("inverse_deviation", kStatistics), OptionalInput("weight", kStatistics)},
    .outputs = {Output("dX", kAllFloats), Output("dweight", kStatistics), Output("dbias", kStatistics)},
    .attributes = {IntAttribute("training", 1)},
    .make = MakeKernel<BatchNormGradKernel>,
});

}  // namespace
}  // namespace npu
