// torch's cummax and cummin: the running extreme and its position, the last one of equals. NaN propagates.
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/reduce/scan.h"

namespace npu {
namespace {

template <bool maximum>
class CumExtremeKernel : public Kernel {
 public:
  explicit CumExtremeKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis(kOp, axis_, x.shape.rank());
    const TensorView values = ctx.Output(0, x.dtype, x.shape), indices = ctx.Output(1, DType::kInt64, x.shape);
    NPU_OP_CHECK(kOp, values && indices, "expected values and indices to be asked for together");
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [view = ViewAround(x.shape, axis), from = x.as<const T>(), to = values.as<T>(),
                       at = indices.as<int64_t>()] { Scan(view, from, to, at); });
    });
  }

 private:
  static constexpr const char* kOp = maximum ? "cummax" : "cummin";

  template <class T>
  static void Scan(const AxisView& view, const T* from, T* to, int64_t* at) {
    struct Best {
      ComputeType<T> value{};
      int64_t place = -1;
    };
    ScanLines(view, /*reverse=*/false, Best{}, [=](Best& best, int64_t i, int64_t offset) {
      const ComputeType<T> e = Upcast(from[offset]);
      const bool extreme = maximum ? e >= best.value : e <= best.value;
      if (best.place < 0 || e != e || (best.value == best.value && extreme)) best = {e, i};
      to[offset] = Rounded<T>(best.value);
      at[offset] = best.place;
    });
  }

  int64_t axis_;
};

OpDef CumExtremeDef(const char* type, KernelFactory make) {
  return {.domain = "npu.aten",
          .type = type,
          .inputs = {Input("x", kNumeric)},
          .outputs = {Output("values", kNumeric), Output("indices", kInt64)},
          .attributes = {RequiredInt("axis")},
          .make = std::move(make)};
}

NPU_ONNX_KERNEL(CumExtremeDef("CumMax", MakeKernel<CumExtremeKernel<true>>));
NPU_ONNX_KERNEL(CumExtremeDef("CumMin", MakeKernel<CumExtremeKernel<false>>));

}  // namespace
}  // namespace npu
