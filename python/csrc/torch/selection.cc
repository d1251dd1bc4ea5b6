// Selection of elements: where, masks, clamp.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/clamp_max_meta.h>
#include <ATen/ops/clamp_meta.h>
#include <ATen/ops/clamp_min_meta.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <cmath>

#include "python/csrc/torch/bits.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& WhereOut(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const at::ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ", out.scalar_type());
  InferBroadcast(out, {condition, self, other});
  if (out.numel() == 0) return out;
  if (MovesAsBits(out)) {
    at::Tensor bits = Bits(out);
    WhereOut(condition, Bits(self.to(dtype)), Bits(other.to(dtype)), bits);
    return out;
  }
  if (ToDType(dtype) == DType::kUndefined) return FallBack<at::_ops::where_self_out>(condition, self, other, out);
  KernelCall("Where").In(Dense(condition, at::kBool)).In(Dense(self, dtype)).In(Dense(other, dtype)).Into(out);
  return out;
}

at::Tensor Where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor& beside = condition.is_cpu() ? (self.is_cpu() ? other : self) : condition;
  at::Tensor out = Empty({0}, at::result_type(self, other), beside);
  return WhereOut(condition, self, other, out);
}

at::Tensor& MaskedFill(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  if (self.numel() == 0) return self;
  if (MovesAsBits(self)) {
    at::Tensor bits = Bits(self);
    MaskedFill(bits, mask, Bits(value.to(self.scalar_type())));
    return self;
  }
  if (ToDType(self.scalar_type()) == DType::kUndefined)
    return FallBack<at::_ops::masked_fill__Tensor>(self, mask, value);
  TORCH_CHECK(at::infer_size(mask.sizes(), self.sizes()) == self.sizes(), "expected a mask that broadcasts to ",
              self.sizes(), ", got ", mask.sizes());
  // Of an expanded tensor, elements that share memory are filled if the mask selects any of them.
  at::Tensor target = self;
  at::Tensor selected = mask;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (self.stride(dim) != 0 || self.size(dim) == 1) continue;
    selected = selected.expand(target.sizes()).any(dim, /*keepdim=*/true);
    target = target.narrow(dim, 0, 1);
  }
  KernelCall("Where").In(Dense(selected)).In(Dense(value, self.scalar_type())).In(Dense(target)).Into(target);
  return self;
}
at::Tensor& MaskedFillScalar(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value) {
  return MaskedFill(self, mask, ScalarTensor(value, self.scalar_type(), self));
}

// max(x, low), then min(…, high): NaN is kept, and high wins if the bounds cross.
template <class Op, class... Args>
at::Tensor& Clamp(at::ScalarType dtype, const at::Tensor& self, const std::optional<at::Tensor>& low,
                  const std::optional<at::Tensor>& high, at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  if (!KernelCall("Max").Takes(0, dtype)) return FallBack<Op>(self, args..., out);
  at::Tensor raised = Dense(self, dtype);
  if (low) {
    KernelCall call("Max");
    call.In(raised).In(Dense(*low, dtype));
    if (!high) {
      call.Into(out);
      return out;
    }
    raised = call.One();
  }
  KernelCall("Min").In(raised).In(Dense(*high, dtype)).Into(out);
  return out;
}

template <class Op, class... Args>
at::Tensor& ClampToScalars(at::ScalarType dtype, const at::Tensor& self, const std::optional<c10::Scalar>& low,
                           const std::optional<c10::Scalar>& high, at::Tensor& out, const Args&... args) {
  const auto tensor = [&](const std::optional<c10::Scalar>& bound) {
    return bound ? std::optional(ScalarTensor(*bound, dtype, self)) : std::nullopt;
  };
  // A bound that is NaN makes all elements NaN, which Clip leaves as they are.
  const auto is_nan = [](const std::optional<c10::Scalar>& bound) {
    return bound && bound->isFloatingPoint() && std::isnan(bound->toDouble());
  };
  KernelCall call("Clip");
  if (out.numel() == 0 || is_nan(low) || is_nan(high) || !call.Takes(0, dtype))
    return Clamp<Op>(dtype, self, tensor(low), tensor(high), out, args...);
  call.In(Dense(self, dtype));
  for (const std::optional<c10::Scalar>& bound : {low, high}) bound ? call.In(*tensor(bound)) : call.Absent();
  call.Into(out);
  return out;
}

at::Tensor& ClampOut(const at::Tensor& self, const std::optional<c10::Scalar>& low,
                     const std::optional<c10::Scalar>& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp>(
      out, self, low ? at::OptionalScalarRef(*low) : at::OptionalScalarRef(),
      high ? at::OptionalScalarRef(*high) : at::OptionalScalarRef());
  return ClampToScalars<at::_ops::clamp_out>(dtype, self, low, high, out, low, high);
}
at::Tensor& ClampTensorOut(const at::Tensor& self, const std::optional<at::Tensor>& low,
                           const std::optional<at::Tensor>& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_Tensor>(
      out, self, low ? at::OptionalTensorRef(*low) : at::OptionalTensorRef(),
      high ? at::OptionalTensorRef(*high) : at::OptionalTensorRef());
  return Clamp<at::_ops::clamp_Tensor_out>(dtype, self, low, high, out, low, high);
}
at::Tensor& ClampMinOut(const at::Tensor& self, const c10::Scalar& low, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_min>(out, self, low);
  return ClampToScalars<at::_ops::clamp_min_out>(dtype, self, low, std::nullopt, out, low);
}
at::Tensor& ClampMaxOut(const at::Tensor& self, const c10::Scalar& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_max>(out, self, high);
  return ClampToScalars<at::_ops::clamp_max_out>(dtype, self, std::nullopt, high, out, high);
}

at::Tensor& ClampMinTensorOut(const at::Tensor& self, const at::Tensor& low, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_min_Tensor>(out, self, low);
  return Clamp<at::_ops::clamp_min_Tensor_out>(dtype, self, low, std::nullopt, out, low);
}
at::Tensor& ClampMaxTensorOut(const at::Tensor& self, const at::Tensor& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_max_Tensor>(out, self, high);
  return Clamp<at::_ops::clamp_max_Tensor_out>(dtype, self, std::nullopt, high, out, high);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("where.self", &Where);
  m.impl("where.self_out", &WhereOut);
  m.impl("masked_fill_.Scalar", &MaskedFillScalar);
  m.impl("masked_fill_.Tensor", &MaskedFill);
  m.impl("clamp.out", &ClampOut);
  m.impl("clamp.Tensor_out", &ClampTensorOut);
  m.impl("clamp_min.out", &ClampMinOut);
  m.impl("clamp_max.out", &ClampMaxOut);
  m.impl("clamp_min.Tensor_out", &ClampMinTensorOut);
  m.impl("clamp_max.Tensor_out", &ClampMaxTensorOut);
}

}  // namespace
}  // namespace npu::aten
