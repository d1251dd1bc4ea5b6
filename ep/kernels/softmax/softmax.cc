// Softmax and LogSoftmax: along one axis since opset 13; before that, over all axes from `axis` on together. Computed
// in float, doubles in double.
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

constexpr int64_t kColumns = 256;  // processed side by side if the axis is not the innermost

template <bool log>
class SoftmaxKernel final : public Kernel {
 public:
  static constexpr const char* kOp = log ? "LogSoftmax" : "Softmax";

  explicit SoftmaxKernel(const KernelInfo& info)
      : flattens_(info.since_version < 13), axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    // The flattening form also accepts axis == rank: rows of one element.
    const int axis = flattens_ && axis_ == rank ? rank : NormalizeAxis(kOp, axis_, rank);
    const int64_t outer = x.shape.Elements(0, axis);
    const int64_t n = flattens_ ? x.shape.Elements(axis, rank) : x.shape[axis];
    const int64_t inner = flattens_ ? 1 : x.shape.Elements(axis + 1, rank);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (!y || x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      if (inner == 1) {
        LaunchRows<T>(ctx, x, y, outer, n);
      } else {
        ctx.Launch(kOp, [=] { Columns(x.as<T>(), y.as<T>(), outer, n, inner); });
      }
    });
  }

 private:
  template <class C>
  static void Row(C* x, int64_t n) {
    if constexpr (log) {
      LogSoftmaxRow(x, n);
    } else {
      SoftmaxRow(x, n);
    }
  }

  template <class T>
  static void LaunchRows(OpContext& ctx, const TensorView& x, const TensorView& y, int64_t rows, int64_t n) {
    constexpr bool kInPlace = std::is_same_v<T, ComputeType<T>>;
    const int64_t threads = ThreadsForElements(rows * n);
    float* scratch = nullptr;
    if constexpr (!kInPlace) {
      scratch = static_cast<float*>(ctx.Workspace(static_cast<size_t>(threads * n) * sizeof(float)));
    }
    ctx.Launch(kOp, [=] {
      ForRowsOfThreads(rows, threads, [&](int64_t thread, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          if constexpr (kInPlace) {
            T* to = y.as<T>() + row * n;
            if (x.data != y.data) UpcastRow(x.as<const T>() + row * n, to, n);
            Row(to, n);
          } else {
            float* values = scratch + thread * n;
            ToFloat(x.as<T>() + row * n, values, n);
            Row(values, n);
            FromFloat(values, y.as<T>() + row * n, n);
          }
        }
      });
    });
  }

  template <class T>
  static void Columns(const T* x, T* y, int64_t outer, int64_t n, int64_t inner) {
    const int64_t blocks = (inner + kColumns - 1) / kColumns;
    ParallelFor(outer * blocks, 1 + 16 * 1024 / (n * std::min(inner, kColumns)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * kColumns;
        const int64_t offset = i / blocks * n * inner + first;
        ColumnBlock(x + offset, y + offset, n, inner, std::min(kColumns, inner - first));
      }
    });
  }

  // n rows of `count` columns; y may be x.
  template <class T>
  static void ColumnBlock(const T* x, T* y, int64_t n, int64_t stride, int64_t count) {
    using C = ComputeType<T>;
    alignas(64) C values[kColumns], max[kColumns], sum[kColumns];
    std::fill_n(max, count, -std::numeric_limits<C>::infinity());
    std::fill_n(sum, count, C{0});
    for (int64_t row = 0; row < n; ++row) {
      UpcastRow(x + row * stride, values, count);
      for (int64_t c = 0; c < count; ++c) max[c] = values[c] > max[c] ? values[c] : max[c];
    }
    for (int64_t row = 0; row < n; ++row) {
      UpcastRow(x + row * stride, values, count);
      for (int64_t c = 0; c < count; ++c) sum[c] += real::Exp(values[c] - max[c]);
    }
    for (int64_t c = 0; c < count; ++c) sum[c] = log ? real::Log(sum[c]) : C{1} / sum[c];
    for (int64_t row = 0; row < n; ++row) {
      UpcastRow(x + row * stride, values, count);
      for (int64_t c = 0; c < count; ++c) {
        const C below = values[c] - max[c];
        values[c] = log ? below - sum[c] : real::Exp(below) * sum[c];
      }
      RoundRow(values, y + row * stride, count);
    }
  }

  bool flattens_;
  int64_t axis_;
};

template <bool log>
OpDef Definition(int since, int until, int64_t axis) {
  return {
      .type = SoftmaxKernel<log>::kOp,
      .since = since,
      .until = until,
      .inputs = {Input("input", kAllFloats)},
      .outputs = {Output("output", kAllFloats)},
      .attributes = {IntAttribute("axis", axis)},
      .may_alias = {{0, 0}},
      .make = MakeKernel<SoftmaxKernel<log>>,
  };
}

NPU_ONNX_KERNEL(Definition<false>(1, 11, 1));
NPU_ONNX_KERNEL(Definition<false>(13, 13, -1));
NPU_ONNX_KERNEL(Definition<true>(1, 11, 1));
NPU_ONNX_KERNEL(Definition<true>(13, 13, -1));

}  // namespace
}  // namespace npu
