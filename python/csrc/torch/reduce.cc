// Reductions, argmax and argmin, cumulative sums, softmax and normalisation.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_meta.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/all_meta.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/aminmax_meta.h>
#include <ATen/ops/aminmax_ops.h>
#include <ATen/ops/any_meta.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/min_meta.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/sum_meta.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include <numeric>
#include <tuple>
#include <vector>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

std::vector<int64_t> Axes(at::OptionalIntArrayRef dim, int64_t rank) {
  std::vector<int64_t> axes;
  if (dim.has_value())
    for (const int64_t d : *dim) axes.push_back(at::maybe_wrap_dim(d, rank));
  if (axes.empty()) {
    axes.resize(static_cast<size_t>(rank));
    std::iota(axes.begin(), axes.end(), int64_t{0});
  }
  return axes;
}

// Reduces `self`, converted to `dtype`, over `axes` into `out`, which is filled with `empty` if `self` has no elements.
// False when the kernel does not support the dtype.
bool Reduce(const char* type, at::ScalarType dtype, const at::Tensor& self, const std::vector<int64_t>& axes,
            const std::optional<c10::Scalar>& empty, at::Tensor& out) {
  if (out.numel() == 0) return true;
  if (self.numel() == 0 && empty) {
    out.fill_(*empty);
    return true;
  }
  KernelCall call(type);
  if (!call.Takes(0, dtype)) return false;
  if (self.dim() == 0) {
    out.copy_(Dense(self, dtype));  // one element is its own sum, product and extreme
    return true;
  }
  // Always with keepdims: the kernel's output has the elements of `out` in their order either way.
  call.In(Dense(self, dtype)).Host(axes).Set("keepdims", int64_t{1}).Into(out);
  return true;
}

// The parts of complex numbers are summed on their own.
at::Tensor& ComplexSum(const at::Tensor& self, const std::vector<int64_t>& axes, bool keepdim, at::Tensor& out) {
  const ComplexParts parts = ComplexParts::Of(self, out.scalar_type(), out);
  const auto sum = [&](const at::Tensor& part) { return part.dim() == 0 ? part : part.sum(axes, keepdim); };
  return ComplexParts{sum(parts.re), parts.HasTwo() ? sum(parts.im) : at::Tensor()}.Into(out);
}

at::Tensor& SumOut(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_sum_dim_IntList>(out, self, dim, keepdim, dtype);
  if (out.is_complex()) return ComplexSum(self, Axes(dim, self.dim()), keepdim, out);
  const std::vector<int64_t> axes = Axes(dim, self.dim());
  // A mask is counted as it is: as int64 it would take eight times its memory.
  if (self.scalar_type() == at::kBool && out.scalar_type() == at::kLong && self.numel() > 0 &&
      axes.size() == static_cast<size_t>(self.dim()))
    return out.copy_(KernelCall("CountTrue", "npu.aten").In(Dense(self)).One().view(out.sizes()));
  if (Reduce("ReduceSum", out.scalar_type(), self, axes, 0, out)) return out;
  // Sums of small integers in int64 have the same low bits.
  if (at::isIntegralType(out.scalar_type(), /*includeBool=*/false) && out.scalar_type() != at::kLong)
    return out.copy_(Dense(self, out.scalar_type()).sum(dim, keepdim, at::kLong));
  return FallBack<at::_ops::sum_IntList_out>(self, dim, keepdim, dtype, out);
}
at::Tensor& MeanOut(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_mean_dim>(out, self, dim, keepdim, dtype);
  CheckCast(dtype.value_or(self.scalar_type()), out);
  if (out.is_complex() && out.numel() > 0) {
    const double count = static_cast<double>(self.numel()) / static_cast<double>(out.numel());
    return ComplexSum(self, Axes(dim, self.dim()), keepdim, out).div_(count);
  }
  if (Reduce("ReduceMean", out.scalar_type(), self, Axes(dim, self.dim()), std::nan(""), out)) return out;
  return FallBack<at::_ops::mean_out>(self, dim, keepdim, dtype, out);
}
at::Tensor& ProdOut(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype,
                    at::Tensor& out) {
  Infer<at::meta::structured_prod_dim_int>(out, self, dim, keepdim, dtype);
  if (Reduce("ReduceProd", out.scalar_type(), self, Axes({{dim}}, self.dim()), 1, out)) return out;
  return FallBack<at::_ops::prod_int_out>(self, dim, keepdim, dtype, out);
}

// The dtype in which max and min are computed: of the same order, and supported by kernels.
at::ScalarType Comparable(const at::Tensor& self) {
  switch (self.scalar_type()) {
    case at::kBool:
      return at::kByte;
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    default:
      return self.scalar_type();
  }
}

at::Tensor& AmaxOut(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_amax>(out, self, dim, keepdim);
  if (Reduce("ReduceMax", Comparable(self), self, Axes(dim, self.dim()), std::nullopt, out)) return out;
  return FallBack<at::_ops::amax_out>(self, dim, keepdim, out);
}
at::Tensor& AminOut(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_amin>(out, self, dim, keepdim);
  if (Reduce("ReduceMin", Comparable(self), self, Axes(dim, self.dim()), std::nullopt, out)) return out;
  return FallBack<at::_ops::amin_out>(self, dim, keepdim, out);
}

// The norm of a vector, or of each row of a tensor, as used for clipping gradients.
at::Tensor& VectorNormOut(const at::Tensor& self, const c10::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim,
                          std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_linalg_vector_norm>(out, self, ord, dim, keepdim, dtype);
  const double order = ord.toDouble();
  const std::vector<int64_t> axes = Axes(dim, self.dim());
  if (self.is_complex()) {
    const at::Tensor sizes = (dtype ? self.to(*dtype) : self).abs();
    return VectorNormOut(sizes, ord, dim, keepdim, std::nullopt, out);
  }
  if (!at::isFloatingType(self.scalar_type()) || ToDType(self.scalar_type()) == DType::kUndefined)
    return FallBack<at::_ops::linalg_vector_norm_out>(self, ord, dim, keepdim, dtype, out);
  if (self.numel() == 0) return out.zero_();  // torch refuses orders whose norm of no element is not 0
  const at::Tensor x = self.to(dtype.value_or(self.scalar_type()));
  if (self.dim() == 0) return out.copy_(order == 0 ? x.ne(0) : x.abs());
  const auto reduce = [&](const char* type, const at::Tensor& from) -> at::Tensor& {
    Reduce(type, from.scalar_type(), from, axes, std::nullopt, out);
    return out;
  };
  if (std::isinf(order)) return reduce(order > 0 ? "ReduceMax" : "ReduceMin", x.abs());
  if (order == 0) return reduce("ReduceSum", x.ne(0).to(AccumulateType(x.scalar_type())));
  if (order == 1) return reduce("ReduceL1", x);
  if (order == 2) return reduce("ReduceL2", x);
  return out.copy_(Wide(x).abs().pow(ord).sum(axes, keepdim).pow(1 / order));
}

at::Tensor& NormDtypeOut(const at::Tensor& self, const std::optional<c10::Scalar>& p, at::IntArrayRef dim, bool keepdim,
                         at::ScalarType dtype, at::Tensor& out) {
  const at::OptionalIntArrayRef dims = dim.empty() ? at::OptionalIntArrayRef() : dim;
  return VectorNormOut(self, p.value_or(2), dims, keepdim, dtype, out);
}
at::Tensor& NormOut(const at::Tensor& self, const std::optional<c10::Scalar>& p, at::IntArrayRef dim, bool keepdim,
                    at::Tensor& out) {
  return NormDtypeOut(self, p, dim, keepdim, self.scalar_type(), out);
}

at::Tensor WholeExtreme(const char* type, const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0,
              "max() and min(): Expected reduction dim to be specified for input.numel() == 0. "
              "Specify the reduction dim with the 'dim' argument.");
  at::Tensor out = Empty({}, self.scalar_type(), self);
  return Reduce(type, Comparable(self), self, Axes(std::nullopt, self.dim()), std::nullopt, out) ? out : at::Tensor();
}
at::Tensor Max(const at::Tensor& self) {
  at::Tensor out = WholeExtreme("ReduceMax", self);
  return out.defined() ? out : FallBack<at::_ops::max>(self);
}
at::Tensor Min(const at::Tensor& self) {
  at::Tensor out = WholeExtreme("ReduceMin", self);
  return out.defined() ? out : FallBack<at::_ops::min>(self);
}

// Bools as the bytes 0 and 1: their max is any(), their min is all().
at::Tensor& Truth(const char* type, bool empty, const at::Tensor& self, at::OptionalIntArrayRef dim, at::Tensor& out) {
  const bool known = ToDType(self.scalar_type()) != DType::kUndefined;
  const at::Tensor truth = self.scalar_type() == at::kBool ? self : known ? Dense(self, at::kBool) : self.ne(0);
  Reduce(type, at::kByte, truth, Axes(dim, self.dim()), empty, out);
  return out;
}

at::Tensor& AnyOut(const at::Tensor& self, at::Tensor& out) {
  Infer<at::meta::structured_any>(out, self);
  return Truth("ReduceMax", false, self, {}, out);
}
at::Tensor& AnyDimOut(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_any_dim>(out, self, dim, keepdim);
  return Truth("ReduceMax", false, self, {{dim}}, out);
}
at::Tensor& AllOut(const at::Tensor& self, at::Tensor& out) {
  Infer<at::meta::structured_all>(out, self);
  return Truth("ReduceMin", true, self, {}, out);
}
at::Tensor& AllDimOut(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_all_dim>(out, self, dim, keepdim);
  return Truth("ReduceMin", true, self, {{dim}}, out);
}

// Positions of the max or min along one dimension, dense; of the whole tensor without one.
at::Tensor Positions(const char* type, const at::Tensor& self, std::optional<int64_t> dim) {
  const at::Tensor dense = Dense(self, Comparable(self));
  KernelCall call(type);
  if (dim && self.dim() > 0) {
    call.In(dense).Set("axis", at::maybe_wrap_dim(*dim, self.dim()));
  } else {
    call.In(dense, {dense.numel()}).Set("axis", int64_t{0});
  }
  return call.Set("keepdims", int64_t{1}).One();
}

at::Tensor& ArgmaxOut(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_argmax>(out, self, dim, keepdim);
  if (out.numel() > 0) out.copy_(Positions("ArgMax", self, dim).view(out.sizes()));
  return out;
}
at::Tensor& ArgminOut(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim, at::Tensor& out) {
  Infer<at::meta::structured_argmin>(out, self, dim, keepdim);
  if (out.numel() > 0) out.copy_(Positions("ArgMin", self, dim).view(out.sizes()));
  return out;
}

// Max or min with its positions.
void Extremes(const char* type, const at::Tensor& self, int64_t dim, at::Tensor& values, at::Tensor& indices) {
  if (values.numel() == 0) return;
  const at::Tensor positions = Positions(type, self, dim);
  indices.copy_(positions.view(indices.sizes()));
  if (self.dim() == 0) {
    values.copy_(self);
    return;
  }
  const at::Tensor found =
      KernelCall("GatherElements").In(Dense(self)).In(positions).Set("axis", at::maybe_wrap_dim(dim, self.dim())).One();
  values.copy_(found.view(values.sizes()));
}
std::tuple<at::Tensor&, at::Tensor&> MaxDimOut(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values,
                                               at::Tensor& indices) {
  InferTwo<at::meta::structured_max_dim>(values, indices, self, at::maybe_wrap_dim(dim, self.dim()), keepdim);
  Extremes("ArgMax", self, dim, values, indices);
  return {values, indices};
}
std::tuple<at::Tensor&, at::Tensor&> MinDimOut(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values,
                                               at::Tensor& indices) {
  InferTwo<at::meta::structured_min_dim>(values, indices, self, at::maybe_wrap_dim(dim, self.dim()), keepdim);
  Extremes("ArgMin", self, dim, values, indices);
  return {values, indices};
}

at::Tensor& CumsumOut(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_cumsum>(out, self, dim, dtype);
  if (out.numel() == 0) return out;
  KernelCall call("CumSum");
  at::ScalarType type = out.scalar_type();
  // ONNX has no CumSum of small integers. Sums in int64 have the same low bits.
  if (!call.Takes(0, type) && at::isIntegralType(type, /*includeBool=*/false)) type = at::kLong;
  if (out.is_complex()) {
    const ComplexParts parts = ComplexParts::Of(self, type, out);
    return ComplexParts{parts.re.cumsum(dim), parts.HasTwo() ? parts.im.cumsum(dim) : at::Tensor()}.Into(out);
  }
  if (!call.Takes(0, type)) return FallBack<at::_ops::cumsum_out>(self, dim, dtype, out);
  if (self.dim() == 0) return out.copy_(self);
  call.In(Dense(Dense(self, out.scalar_type()), type)).HostScalar(at::maybe_wrap_dim(dim, self.dim())).Into(out);
  return out;
}

at::Tensor Variance(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<c10::Scalar>& correction,
                    bool keepdim) {
  const std::vector<int64_t> axes = Axes(dim, self.dim());
  if (self.dim() == 0) return Variance(self.unsqueeze(0), at::IntArrayRef{0}, correction, /*keepdim=*/false);
  if (self.is_complex()) {
    const ComplexParts parts = ComplexParts::Of(self);
    return Variance(parts.re, dim, correction, keepdim) + Variance(parts.im, dim, correction, keepdim);
  }
  double count = 1;
  for (const int64_t d : axes) count *= static_cast<double>(self.size(d));
  const double degrees = count - (correction ? correction->toDouble() : 1.0);
  const at::Tensor wide = self.to(AccumulateType(self.scalar_type()));
  const at::Tensor squares = wide.sub(wide.mean(axes, /*keepdim=*/true)).square();
  return squares.sum(axes, keepdim).div_(degrees > 0 ? degrees : 0.0);
}
at::Tensor Var(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<c10::Scalar>& correction,
               bool keepdim) {
  if (!self.is_floating_point() && !self.is_complex())
    return FallBack<at::_ops::var_correction>(self, dim, correction, keepdim);
  return Variance(self, dim, correction, keepdim).to(c10::toRealValueType(self.scalar_type()));
}
at::Tensor Std(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<c10::Scalar>& correction,
               bool keepdim) {
  if (!self.is_floating_point() && !self.is_complex())
    return FallBack<at::_ops::std_correction>(self, dim, correction, keepdim);
  return Variance(self, dim, correction, keepdim).sqrt_().to(c10::toRealValueType(self.scalar_type()));
}
std::tuple<at::Tensor, at::Tensor> VarMean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                           const std::optional<c10::Scalar>& correction, bool keepdim) {
  return {self.var(dim, correction, keepdim), self.mean(dim, keepdim)};
}
std::tuple<at::Tensor, at::Tensor> StdMean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                           const std::optional<c10::Scalar>& correction, bool keepdim) {
  return {self.std(dim, correction, keepdim), self.mean(dim, keepdim)};
}

// --- Reductions composed of other reductions

at::Tensor ProdOfAll(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return self.reshape({-1}).prod(0, /*keepdim=*/false, dtype);
}
at::Tensor CountNonzero(const at::Tensor& self, at::IntArrayRef dim) {
  return self.ne(0).sum(Axes(dim, self.dim()), /*keepdim=*/false, at::kLong);
}
at::Tensor NanSum(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                  std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(!self.is_complex(), "nansum does not support complex inputs");
  const at::Tensor numbers = self.is_floating_point() ? self.masked_fill(self.isnan(), 0) : self;
  return numbers.sum(dim, keepdim, dtype);
}
at::Tensor Trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return self.diagonal().sum();
}
std::tuple<at::Tensor&, at::Tensor&> AminmaxOut(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim,
                                                at::Tensor& least, at::Tensor& greatest) {
  InferTwo<at::meta::structured_aminmax>(least, greatest, self, dim, keepdim);
  const std::vector<int64_t> axes = dim ? Axes({{*dim}}, self.dim()) : Axes(std::nullopt, self.dim());
  if (!Reduce("ReduceMin", Comparable(self), self, axes, std::nullopt, least) ||
      !Reduce("ReduceMax", Comparable(self), self, axes, std::nullopt, greatest))
    return FallBack<at::_ops::aminmax_out>(self, dim, keepdim, least, greatest);
  return {least, greatest};
}

template <class Op>
at::Tensor& SoftmaxInto(const char* type, const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  if (out.numel() == 0) return out;
  KernelCall call(type);
  if (!call.Takes(0, out.scalar_type())) return FallBack<Op>(self, dim, half_to_float, out);
  const at::Tensor rows = AtLeastOneDimension(Dense(self, out.scalar_type()));
  call.In(rows).Set("axis", at::maybe_wrap_dim(dim, rows.dim())).Into(out);
  return out;
}
at::Tensor& SoftmaxOut(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  Infer<at::meta::structured__softmax>(out, self, dim, half_to_float);
  return SoftmaxInto<at::_ops::_softmax_out>("Softmax", self, dim, half_to_float, out);
}
at::Tensor& LogSoftmaxOut(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  Infer<at::meta::structured__log_softmax>(out, self, dim, half_to_float);
  return SoftmaxInto<at::_ops::_log_softmax_out>("LogSoftmax", self, dim, half_to_float, out);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LayerNorm(const at::Tensor& input, at::IntArrayRef normalized,
                                                         const std::optional<at::Tensor>& weight,
                                                         const std::optional<at::Tensor>& bias, double epsilon) {
  const auto axis = input.dim() - static_cast<int64_t>(normalized.size());
  TORCH_CHECK(!normalized.empty() && axis >= 0 && input.sizes().slice(static_cast<size_t>(axis)) == normalized,
              "Given normalized_shape=", normalized, ", expected input with shape [*, ...], but got input of size",
              input.sizes());
  KernelCall call("LayerNormalization");
  if (!call.Takes(0, input.scalar_type()) || input.numel() == 0)
    return FallBack<at::_ops::native_layer_norm>(input, normalized, weight, bias, epsilon);
  const at::ScalarType dtype = input.scalar_type();
  at::Tensor scale = Has(weight) ? Dense(*weight, dtype) : Empty(normalized, dtype, input).fill_(1);
  call.In(Dense(input)).In(scale).Set("axis", axis).Set("epsilon", epsilon);
  if (Has(bias)) call.In(Dense(*bias, dtype));
  std::vector<at::Tensor> results = call.Run(3);
  if (dtype != at::kDouble) return {results[0], results[1], results[2]};
  // The kernel returns float32, as ONNX says; gradients of float64 need all of the digits.
  std::vector<int64_t> axes(normalized.size());
  std::iota(axes.begin(), axes.end(), axis);
  const auto [variance, mean] = at::var_mean(input, axes, /*correction=*/0, /*keepdim=*/true);
  return {results[0], mean, (variance + epsilon).rsqrt()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("prod", &ProdOfAll);
  m.impl("count_nonzero.dim_IntList", &CountNonzero);
  m.impl("nansum", &NanSum);
  m.impl("trace", &Trace);
  m.impl("aminmax.out", &AminmaxOut);
  m.impl("sum.IntList_out", &SumOut);
  m.impl("mean.out", &MeanOut);
  m.impl("prod.int_out", &ProdOut);
  m.impl("linalg_vector_norm.out", &VectorNormOut);
  m.impl("norm.out", &NormOut);
  m.impl("norm.dtype_out", &NormDtypeOut);
  m.impl("amax.out", &AmaxOut);
  m.impl("amin.out", &AminOut);
  m.impl("max", &Max);
  m.impl("min", &Min);
  m.impl("any.all_out", &AnyOut);
  m.impl("any.out", &AnyDimOut);
  m.impl("all.all_out", &AllOut);
  m.impl("all.out", &AllDimOut);
  m.impl("argmax.out", &ArgmaxOut);
  m.impl("argmin.out", &ArgminOut);
  m.impl("max.dim_max", &MaxDimOut);
  m.impl("min.dim_min", &MinDimOut);
  m.impl("cumsum.out", &CumsumOut);
  m.impl("var.correction", &Var);
  m.impl("std.correction", &Std);
  m.impl("var_mean.correction", &VarMean);
  m.impl("std_mean.correction", &StdMean);
  m.impl("_softmax.out", &SoftmaxOut);
  m.impl("_log_softmax.out", &LogSoftmaxOut);
  m.impl("native_layer_norm", &LayerNorm);
}

}  // namespace
}  // namespace npu::aten
