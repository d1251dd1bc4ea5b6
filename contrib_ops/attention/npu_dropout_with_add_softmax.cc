// npu_dropout_with_add_softmax(self, x1; alpha, prob, dim, seed) -> mask, softmax, dropout. The semantics are in
// npu_dropout_with_add_softmax.py.
#include "contrib_ops/attention/npu_dropout_with_add_softmax.h"

#include <algorithm>

#include "ep/kernels/broadcast_rows.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/dropout_mask.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

using In = nodes::NPUDropoutWithAddSoftmax::In;
using Out = nodes::NPUDropoutWithAddSoftmax::Out;

constexpr const char* kOp = "npu_dropout_with_add_softmax";

class DropoutWithAddSoftmaxKernel final : public Kernel {
 public:
  explicit DropoutWithAddSoftmaxKernel(const KernelInfo& info)
      : alpha_(static_cast<float>(info.attributes.Float("alpha"))),
        // Rounded to float32, as a node stores it, also where torch passes more digits.
        prob_(static_cast<float>(info.attributes.Float("prob"))),
        dim_(info.attributes.Int("dim")),
        seed_(static_cast<uint64_t>(info.attributes.Int("seed"))) {
    NPU_OP_CHECK(kOp, prob_ >= 0.0f && prob_ < 1.0f, "expected prob in [0, 1), got ", prob_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self), x1 = ctx.Input(In::x1);
    NPU_OP_CHECK(kOp, x && x1, "expected the tensors self and x1");
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1, "expected self of rank >= 1, got a scalar");
    NPU_OP_CHECK(kOp, dim_ == -1 || dim_ == x.shape.rank() - 1, "expected dim of the last axis, -1, got ", dim_);
    NPU_OP_CHECK(kOp, x.dtype == x1.dtype, "expected x1 of self's dtype ", NameOf(x.dtype), ", got ", NameOf(x1.dtype));
    NPU_OP_CHECK(kOp, BroadcastRows::Fits(x1.shape, x.shape), "expected x1 that broadcasts to self of shape ", x.shape,
                 ", got ", x1.shape);

    const int64_t units = DropoutUnits(x.elements());
    const TensorView mask = ctx.Output(Out::mask, DType::kUInt8, Shape{units * kDropoutUnitBytes});
    const TensorView softmax = ctx.Output(Out::softmax, x.dtype, x.shape),
                     dropout = ctx.Output(Out::dropout, x.dtype, x.shape);
    if (x.elements() == 0) return;
    uint8_t* bits = mask ? mask.as<uint8_t>() : static_cast<uint8_t*>(ctx.Workspace(units * kDropoutUnitBytes));
    LaunchDropoutMask(ctx, kOp, prob_, seed_, bits, units);
    DispatchFloats(kOp, x.dtype, [&](auto type) { LaunchRows<decltype(type)>(ctx, x, x1, bits, softmax, dropout); });
  }

 private:
  template <class T>
  void LaunchRows(OpContext& ctx, const TensorView& x, const TensorView& x1, const uint8_t* bits,
                  const TensorView& softmax, const TensorView& dropout) const {
    const int64_t n = x.shape.back();
    const int64_t rows = x.shape.Elements(0, x.shape.rank() - 1);
    const int64_t threads = ThreadsForElements(rows * n);
    auto* scratch = static_cast<float*>(ctx.Workspace(static_cast<size_t>(threads * 2 * n) * sizeof(float)));
    const float scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(prob_)));
    ctx.Launch(kOp, [=, alpha = alpha_, x1_rows = BroadcastRows(x1.shape, x.shape)] {
      ForRowsOfThreads(rows, threads, [&](int64_t thread, int64_t first, int64_t last) {
        float* values = scratch + thread * 2 * n;
        float* addend = values + n;
        const int64_t addend_size = x1_rows.column_stride() == 0 ? 1 : n;
        for (int64_t row = first; row < last; ++row) {
          ToFloat(x.as<T>() + row * n, values, n);
          ToFloat(x1.as<T>() + x1_rows.OffsetOf(row), addend, addend_size);
          if (addend_size != n) std::fill_n(addend, n, addend[0]);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) values[i] = addend[i] + alpha * values[i];
          SoftmaxRow(values, n);
          if (softmax) FromFloat(values, softmax.as<T>() + row * n, n);
          if (!dropout) continue;
          for (int64_t i = 0; i < n; ++i) {
            const int64_t at = row * n + i;
            values[i] = (bits[at / 8] >> (at % 8) & 1) != 0 ? values[i] * scale : 0.0f;
          }
          FromFloat(values, dropout.as<T>() + row * n, n);
        }
      });
    });
  }

  float alpha_, prob_;
  int64_t dim_;
  uint64_t seed_;
};

NPU_KERNEL(NPUDropoutWithAddSoftmax, DropoutWithAddSoftmaxKernel);

}  // namespace
}  // namespace npu
