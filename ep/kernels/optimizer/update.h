// Shared by optimizer steps: tensors that are updated in place, with scalars in device memory.
#pragma once

#include <string>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu::optimizer {

inline constexpr DTypeSet kNumber{DType::kFloat32, DType::kFloat64};

// A scalar that the launch reads, or `absent`.
class DeviceNumber {
 public:
  DeviceNumber(const char* op, const char* name, const TensorView& view, double absent = 0)
      : data_(view ? view.data : nullptr), wide_(view.dtype == DType::kFloat64), absent_(absent) {
    NPU_OP_CHECK(op, !view || (kNumber.Contains(view.dtype) && view.elements() == 1), "expected ", name,
                 " to be one float32 or float64, got ", NameOf(view.dtype), view.shape);
  }
  double operator()() const {
    if (data_ == nullptr) return absent_;
    return wide_ ? *static_cast<const double*>(data_) : *static_cast<const float*>(data_);
  }

 private:
  const void* data_;
  bool wide_;
  double absent_;
};

// GradScaler's inputs: gradients are divided by the scale, and the step is skipped if an infinity was found.
struct Scaling {
  DeviceNumber scale, found_inf;

  Scaling(const char* op, const TensorView& grad_scale, const TensorView& found)
      : scale(op, "grad_scale", grad_scale, 1), found_inf(op, "found_inf", found) {}
};

// Checks that `t` has the dtype and shape of the parameter it belongs to.
inline void CheckLike(const char* op, const char* name, const TensorView& t, const TensorView& param) {
  NPU_OP_CHECK(op, t && t.dtype == param.dtype && t.shape == param.shape, "expected ", name, " like the parameter, ",
               NameOf(param.dtype), param.shape, ", got ", t ? NameOf(t.dtype) : "none", t.shape);
}

// Not a node of a model: there, nodes share tensors, so none may be overwritten.
inline OpDef UpdateDef(const char* type, std::vector<ArgDef> inputs, std::vector<AttrDef> attributes,
                       KernelFactory make) {
  return {
      .domain = "npu.aten",
      .type = type,
      .inputs = std::move(inputs),
      .attributes = std::move(attributes),
      .make = std::move(make),
      .unsupported =
          [](const NodeView& node) { return node.op_type + " updates its inputs: it is no node of a model"; },
  };
}

template <class T>
ComputeType<T> Load(const T& x) {
  return static_cast<ComputeType<T>>(x);
}
template <class T>
void Store(T& to, ComputeType<T> x) {
  to = static_cast<T>(x);
}

// A gradient without the scale of GradScaler, stored so as well, times the sign.
template <bool scaled, class T>
[[gnu::always_inline]] inline ComputeType<T> Gradient(T& grad, ComputeType<T> unscale, ComputeType<T> sign) {
  ComputeType<T> x = Load(grad);
  if constexpr (scaled) {
    x /= unscale;
    Store(grad, x);
  }
  return x * sign;
}

// Calls f(std::true_type or std::false_type), so that a loop-invariant condition is decided outside the loop.
template <class F>
void Decide(bool condition, const F& f) {
  condition ? f(std::true_type{}) : f(std::false_type{});
}

// Calls run(begin, end, std::true_type if gradients are `scaled`) for the parts of n elements.
template <class F>
void UpdateElements(int64_t n, bool scaled, const F& run) {
  Decide(scaled, [&](auto is_scaled) {
    ParallelFor(n, kMathGrain, [&](int64_t begin, int64_t end) { run(begin, end, is_scaled); });
  });
}

}  // namespace npu::optimizer
