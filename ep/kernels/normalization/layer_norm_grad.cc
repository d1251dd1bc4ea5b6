// The gradient of torch's layer normalisation, from the statistics of its forward pass: of rows, and of the weight and
// the bias that they share. Computed in float, doubles in double; sums over rows are in double.
#include <algorithm>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

constexpr const char* kOp = "LayerNormGrad";

template <class T>
struct GradTask {
  using C = ComputeType<T>;
  const T *dy, *x;
  const C *mean, *rstd, *weight;  // of each row, and of each column; no weight: 1
  T* dx;
  C *dweight, *dbias;
  double* sums;  // of the weight and of the bias, for each thread
  int64_t threads, rows, n;

  void Run() const {
    std::fill_n(sums, threads * 2 * n, 0.0);
    ForRowsOfThreads(rows, threads, [&](int64_t thread, int64_t first, int64_t last) {
      double* const own = sums + thread * 2 * n;
      for (int64_t row = first; row < last; ++row) Row(row, own, own + n);
    });
    for (int64_t i = 0; i < n; ++i) {
      double of_weight = 0.0, of_bias = 0.0;
      for (int64_t t = 0; t < threads; ++t) {
        of_weight += sums[t * 2 * n + i];
        of_bias += sums[(t * 2 + 1) * n + i];
      }
      dweight[i] = static_cast<C>(of_weight);
      dbias[i] = static_cast<C>(of_bias);
    }
  }

 private:
  // A block of a row: gradients, normalised values, and gradients times the weight.
  struct Block {
    alignas(64) C grads[kRowBlock], values[kRowBlock], weighted[kRowBlock];
  };

  void Load(int64_t row, int64_t begin, int64_t count, Block& block) const {
    UpcastRow(dy + row * n + begin, block.grads, count);
    UpcastRow(x + row * n + begin, block.values, count);
    const C middle = mean[row], scale = rstd[row];
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) block.values[i] = (block.values[i] - middle) * scale;
    if (weight == nullptr) {
      std::copy_n(block.grads, count, block.weighted);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) block.weighted[i] = block.grads[i] * weight[begin + i];
    }
  }

  void Row(int64_t row, double* of_weight, double* of_bias) const {
    Block block;
    double sum = 0.0, along = 0.0;
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      Load(row, begin, count, block);
      C block_sum = 0, block_along = 0;
#pragma omp simd reduction(+ : block_sum, block_along)
      for (int64_t i = 0; i < count; ++i) {
        block_sum += block.weighted[i];
        block_along += block.weighted[i] * block.values[i];
      }
      sum += static_cast<double>(block_sum);
      along += static_cast<double>(block_along);
      double* const weights = of_weight + begin;
      double* const biases = of_bias + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        weights[i] += static_cast<double>(block.grads[i] * block.values[i]);
        biases[i] += static_cast<double>(block.grads[i]);
      }
    });
    const C offset = static_cast<C>(sum / static_cast<double>(n)),
            slope = static_cast<C>(along / static_cast<double>(n));
    const C scale = rstd[row];
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      Load(row, begin, count, block);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        block.weighted[i] = scale * (block.weighted[i] - offset - block.values[i] * slope);
      RoundRow(block.weighted, dx + row * n + begin, count);
    });
  }
};

class LayerNormGradKernel final : public Kernel {
 public:
  explicit LayerNormGradKernel(const KernelInfo& info) : axes_(info.attributes.Int("axes")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView dy = ctx.Input(0), x = ctx.Input(1), weight = ctx.Input(4);
    NPU_OP_CHECK(kOp, dy && x && dy.dtype == x.dtype && dy.shape == x.shape,
                 "expected grad and input of one dtype and shape, got ", NameOf(dy.dtype), " ", dy.shape, " and ",
                 NameOf(x.dtype), " ", x.shape);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, axes_ >= 1 && axes_ <= rank, "expected axes in [1, ", rank, "], got ", axes_);
    const int first = rank - static_cast<int>(axes_);
    const int64_t rows = x.shape.Elements(0, first), n = x.shape.Elements(first, rank);
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      const int64_t counts[] = {rows, rows, n};
      const char* names[] = {"mean", "rstd", "weight"};
      for (size_t i = 0; i < 3; ++i) {
        const TensorView given = ctx.Input(i + 2);
        NPU_OP_CHECK(kOp,
                     (i == 2 && !given) || (given && given.dtype == DTypeOf<C>::value && given.elements() == counts[i]),
                     "expected ", counts[i], " elements of ", names[i], " as ", NameOf(DTypeOf<C>::value), ", got ",
                     given.elements(), " of ", NameOf(given.dtype));
      }
      const TensorView dx = ctx.Output(0, x.dtype, x.shape);
      const TensorView dweight = ctx.Output(1, DTypeOf<C>::value, {n}), dbias = ctx.Output(2, DTypeOf<C>::value, {n});
      NPU_OP_CHECK(kOp, dx && dweight && dbias, "expected all gradients to be asked for");
      const int64_t threads = std::min(std::max<int64_t>(rows, 1), ThreadsForElements(rows * n));
      auto* const sums = static_cast<double*>(ctx.Workspace(BytesFor(DType::kFloat64, threads * 2 * n)));
      const GradTask<T> task{dy.as<const T>(),
                             x.as<const T>(),
                             ctx.Input(2).as<const C>(),
                             ctx.Input(3).as<const C>(),
                             weight ? weight.as<const C>() : nullptr,
                             dx.as<T>(),
                             dweight.as<C>(),
                             dbias.as<C>(),
                             sums,
                             threads,
                             rows,
                             n};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  int64_t axes_;
};

constexpr DTypeSet kStatistics{DType::kFloat32, DType::kFloat64};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = kOp,
    .inputs = {Input("grad", kAllFloats), Input("X", kAllFloats), Input("mean", kStatistics),
               Input("rstd", kStatistics), OptionalInput("weight", kStatistics)},
    .outputs = {Output("dX", kAllFloats), Output("dweight", kStatistics), Output("dbias", kStatistics)},
    .attributes = {RequiredInt("axes")},
    .make = MakeKernel<LayerNormGradKernel>,
});

}  // namespace
}  // namespace npu
