// BiasSplitGelu and BiasDropout: operators that add a bias along the last dimension first. Dropout drops nothing at
// inference, so that of BiasDropout the bias and the residual remain.
#include <algorithm>
#include <string>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/activation/activations.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

void CheckBias(const char* op, const TensorView& x, const TensorView& bias, bool whole) {
  NPU_OP_CHECK(op, x.shape.rank() >= 1, "expected an input of one dimension or more, got shape ", x.shape);
  const Shape row{x.shape.back()};
  NPU_OP_CHECK(op, bias.dtype == x.dtype && (bias.shape == row || (whole && bias.shape == x.shape)),
               "expected a bias of ", NameOf(x.dtype), " ", row, ", got ", NameOf(bias.dtype), " ", bias.shape);
}

constexpr DTypeSet kSplitTypes{DType::kFloat32, DType::kFloat16};

class BiasSplitGeluKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "BiasSplitGelu";
  explicit BiasSplitGeluKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), bias = ctx.Input(1);
    CheckBias(kOp, x, bias, false);
    Shape shape = x.shape;
    NPU_OP_CHECK(kOp, shape.back() % 2 == 0, "expected an even last dimension, got shape ", shape);
    const int64_t n = shape.back() / 2;
    shape[shape.rank() - 1] = n;
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] {
        ParallelFor(y.elements() / n, RowGrain(n), [&](int64_t begin, int64_t end) {
          InBlock<T> in[4];
          OutBlock<T> out;
          for (int64_t row = begin; row < end; ++row) {
            const T *gated = x.as<const T>() + row * 2 * n, *added = bias.as<const T>();
            T* to = y.as<T>() + row * n;
            ForEachBlock(n, [&](int64_t first, int64_t count) {
              const float *a = in[0].Load(gated + first, count), *b = in[1].Load(gated + n + first, count);
              const float *plus_a = in[2].Load(added + first, count), *plus_b = in[3].Load(added + n + first, count);
              float* r = out.Values(to + first);
#pragma omp simd
              for (int64_t i = 0; i < count; ++i) r[i] = (a[i] + plus_a[i]) * GeluErf(b[i] + plus_b[i]);
              out.Commit(to + first, count);
            });
          }
        });
      });
    });
  }
};

NPU_ONNX_KERNEL(Microsoft({
    .type = BiasSplitGeluKernel::kOp,
    .inputs = {Input("X", kSplitTypes), Input("bias", kSplitTypes)},
    .outputs = {Output("Y", kSplitTypes)},
    .make = MakeKernel<BiasSplitGeluKernel>,
}));

// Of the inputs that only training reads, `ratio` is ignored and `training_mode` must be absent or false.
class BiasDropoutKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "BiasDropout";
  explicit BiasDropoutKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), bias = ctx.Input(1), residual = ctx.Input(2), training = ctx.Input(4);
    CheckBias(kOp, x, bias, true);
    NPU_OP_CHECK(kOp, !residual || (residual.dtype == x.dtype && residual.shape == x.shape), "expected a residual of ",
                 NameOf(x.dtype), " ", x.shape, ", got ", NameOf(residual.dtype), " ", residual.shape);
    NPU_OP_CHECK(kOp, !training || (training.elements() == 1 && !training.as<const bool>()[0]),
                 "expected no training_mode or one that is false: only inference is implemented");
    const TensorView y = ctx.Output(0, x.dtype, x.shape), mask = ctx.Output(1, DType::kBool, x.shape);
    if (y.elements() == 0) return;
    const int64_t n = x.shape.back();
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=] {
        if (mask) std::fill_n(mask.as<uint8_t>(), mask.elements(), uint8_t{1});
        ParallelFor(x.elements() / n, RowGrain(n), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const T* from = x.as<const T>() + row * n;
            const T* more = residual ? residual.as<const T>() + row * n : nullptr;
            const T* added = bias.as<const T>() + (bias.elements() == n ? 0 : row * n);
            for (int64_t i = 0; i < n; ++i) {
              ComputeType<T> sum = Upcast(from[i]) + Upcast(added[i]);
              if (more != nullptr) sum += Upcast(more[i]);
              y.as<T>()[row * n + i] = Rounded<T>(sum);
            }
          }
        });
      });
    });
  }
};

NPU_ONNX_KERNEL(Microsoft({
    .type = BiasDropoutKernel::kOp,
    .inputs = {Input("data", kAllFloats), Input("bias", kAllFloats), OptionalInput("residual", kAllFloats),
               OptionalInput("ratio", kAllFloats), OptionalHostInput("training_mode", {DType::kBool})},
    .outputs = {Output("output", kAllFloats), OptionalOutput("mask", {DType::kBool})},
    .attributes = {IntAttribute("seed", 0)},
    .make = MakeKernel<BiasDropoutKernel>,
}));

}  // namespace
}  // namespace npu
