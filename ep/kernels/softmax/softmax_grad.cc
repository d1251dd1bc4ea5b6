// The gradients of torch's softmax and log_softmax along one axis, from the gradient of the result and the result
// itself: y (g - sum(g y)) and g - exp(y) sum(g). Computed in float, and in double across blocks; doubles in double.
#include <algorithm>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/reduce/axis.h"

namespace npu {
namespace {

template <bool log>
class SoftmaxGradKernel final : public Kernel {
 public:
  static constexpr const char* kOp = log ? "LogSoftmaxGrad" : "SoftmaxGrad";

  explicit SoftmaxGradKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(0), result = ctx.Input(1);
    NPU_OP_CHECK(kOp, grad && result && grad.dtype == result.dtype && grad.shape == result.shape,
                 "expected grad and result of one dtype and shape, got ", NameOf(grad.dtype), " ", grad.shape, " and ",
                 NameOf(result.dtype), " ", result.shape);
    const AxisView view = ViewAround(grad.shape, NormalizeAxis(kOp, axis_, grad.shape.rank()));
    const TensorView dx = ctx.Output(0, grad.dtype, grad.shape);
    if (dx.elements() == 0) return;
    DispatchTypes(kOp, grad.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [view, g = grad.as<const T>(), y = result.as<const T>(), to = dx.as<T>()] {
        if (view.inner == 1) {
          ParallelFor(view.outer, RowGrain(view.n), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row)
              Row(g + row * view.n, y + row * view.n, to + row * view.n, view.n);
          });
        } else {
          Columns(view, g, y, to);
        }
      });
    });
  }

 private:
  template <class C>
  static C Summand(C g, C y) {
    return log ? g : g * y;
  }
  template <class C>
  static C Gradient(C g, C y, C sum) {
    return log ? g - real::Exp(y) * sum : y * (g - sum);
  }

  // dx may be g or y.
  template <class T>
  static void Row(const T* g, const T* y, T* dx, int64_t n) {
    using C = ComputeType<T>;
    double total = 0.0;
    ForEachUpcastPair(g, y, n, [&](const C* grads, const C* results, int64_t, int64_t count) {
      C sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < count; ++i) sum += Summand(grads[i], results[i]);
      total += static_cast<double>(sum);
    });
    const C sum = static_cast<C>(total);
    ForEachUpcastPair(g, y, n, [&](C* grads, const C* results, int64_t begin, int64_t count) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) grads[i] = Gradient(grads[i], results[i], sum);
      RoundRow(grads, dx + begin, count);
    });
  }

  // The axis is not the innermost: columns are summed side by side, a block at a time.
  template <class T>
  static void Columns(const AxisView& view, const T* g, const T* y, T* dx) {
    using C = ComputeType<T>;
    const int64_t blocks = (view.inner + kRowBlock - 1) / kRowBlock;
    ParallelFor(
        view.outer * blocks, RowGrain(view.n * std::min(view.inner, kRowBlock)), [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const int64_t first = b % blocks * kRowBlock, columns = std::min(kRowBlock, view.inner - first);
            const int64_t offset = b / blocks * view.n * view.inner + first;
            double totals[kRowBlock] = {};
            for (int64_t k = 0; k < view.n; ++k) {
              const int64_t at = offset + k * view.inner;
              ForEachUpcastPair(g + at, y + at, columns, [&](const C* grads, const C* results, int64_t, int64_t count) {
                for (int64_t i = 0; i < count; ++i) totals[i] += static_cast<double>(Summand(grads[i], results[i]));
              });
            }
            for (int64_t k = 0; k < view.n; ++k) {
              const int64_t at = offset + k * view.inner;
              ForEachUpcastPair(g + at, y + at, columns, [&](C* grads, const C* results, int64_t, int64_t count) {
#pragma omp simd
                for (int64_t i = 0; i < count; ++i)
                  grads[i] = Gradient(grads[i], results[i], static_cast<C>(totals[i]));
                RoundRow(grads, dx + at, count);
              });
            }
          }
        });
  }

  int64_t axis_;
};

template <bool log>
OpDef Definition() {
  return {
      .domain = "npu.aten",
      .type = SoftmaxGradKernel<log>::kOp,
      .inputs = {Input("grad", kAllFloats), Input("result", kAllFloats)},
      .outputs = {Output("dX", kAllFloats)},
      .attributes = {IntAttribute("axis", -1)},
      .may_alias = {{0, 0}, {0, 1}},
      .make = MakeKernel<SoftmaxGradKernel<log>>,
  };
}

NPU_ONNX_KERNEL(Definition<false>());
NPU_ONNX_KERNEL(Definition<true>());

}  // namespace
}  // namespace npu
