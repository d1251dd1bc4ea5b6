// CumSum and CumProd, which differ only in the operation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/scan.h"

namespace npu {

using CumulativeTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

// Operation{}(a, b) runs in double for floats, which are rounded once, and in uint64_t, which wraps, for integers. It
// defines its operator's name, kOp, and the initial value of an exclusive scan, kIdentity.
template <class Operation>
class CumulativeKernel : public Kernel {
 public:
  explicit CumulativeKernel(const KernelInfo& info)
      : exclusive_(info.attributes.Bool("exclusive")), reverse_(info.attributes.Bool("reverse")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis(kOp, ReadHostInt(kOp, "axis", ctx.Input(1)), x.shape.rank());
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, CumulativeTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [view = ViewAround(x.shape, axis), exclusive = exclusive_, reverse = reverse_,
                       from = x.as<const T>(), to = y.as<T>()] { Scan(view, exclusive, reverse, from, to); });
    });
  }

 private:
  static constexpr const char* kOp = Operation::kOp;

  template <class T>
  static void Scan(const AxisView& view, bool exclusive, bool reverse, const T* from, T* to) {
    using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    ScanLines(view, reverse, A{Operation::kIdentity}, [=](A& state, int64_t, int64_t i) {
      const A before = state;
      if constexpr (kIsHalf<T>) {
        state = Operation{}(state, static_cast<A>(ToFloat(from[i])));
        to[i] = FromFloat<T>(static_cast<float>(exclusive ? before : state));
      } else {
        state = Operation{}(state, static_cast<A>(from[i]));
        to[i] = static_cast<T>(exclusive ? before : state);
      }
    });
  }

  bool exclusive_, reverse_;
};

template <class Operation>
OpDef CumulativeDef(int since, int until) {
  constexpr DTypeSet kTypes = SetOf(CumulativeTypes{});
  return {.type = Operation::kOp,
          .since = since,
          .until = until,
          .inputs = {Input("x", kTypes), HostInput("axis", kIndices)},
          .outputs = {Output("y", kTypes)},
          .attributes = {IntAttribute("exclusive", 0), IntAttribute("reverse", 0)},
          .may_alias = {{0, 0}},
          .make = MakeKernel<CumulativeKernel<Operation>>};
}

}  // namespace npu
