// Elements by their rank along one dimension, from a stable sort, which puts NaN last; and the most frequent one.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/kthvalue_ops.h>
#include <ATen/ops/median_ops.h>
#include <ATen/ops/mode_ops.h>
#include <ATen/ops/nanmedian_ops.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

using ValuesAndIndices = std::tuple<at::Tensor&, at::Tensor&>;

void CheckResultTypes(const at::Tensor& self, const at::Tensor& values, const at::Tensor& indices) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(), "output values must be of same type as input, ",
              self.scalar_type(), ", got ", values.scalar_type());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "output indices must be of scalar type Long, got ",
              indices.scalar_type());
}

// The only element of a tensor without dimensions.
ValuesAndIndices Only(const at::Tensor& self, at::Tensor& values, at::Tensor& indices) {
  CheckResultTypes(self, values, indices);
  at::native::resize_output(values, {});
  at::native::resize_output(indices, {});
  values.copy_(self);
  indices.zero_();
  return {values, indices};
}

// Delivers the element at `place` of each sorted row, and its original position. `place` has one element per row.
ValuesAndIndices Pick(const at::Tensor& self, int64_t dim, const at::Tensor& place, bool keepdim, at::Tensor& values,
                      at::Tensor& indices) {
  CheckResultTypes(self, values, indices);
  const auto [sorted, from] = self.sort(/*stable=*/true, dim, /*descending=*/false);
  const auto deliver = [&](const at::Tensor& rows, at::Tensor& out) {
    const at::Tensor picked = rows.gather(dim, place);
    const at::Tensor result = keepdim ? picked : picked.squeeze(dim);
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
  };
  deliver(sorted, values);
  deliver(from, indices);
  return {values, indices};
}

ValuesAndIndices KthValue(const at::Tensor& self, int64_t k, int64_t given_dim, bool keepdim, at::Tensor& values,
                          at::Tensor& indices) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  TORCH_CHECK(k >= 1 && k <= (self.dim() == 0 ? 1 : self.size(dim)),
              "kthvalue(): selected number k out of range for dimension ", dim);
  if (self.dim() == 0 && IsNumber(self.scalar_type())) return Only(self, values, indices);
  if (self.numel() == 0 || !IsNumber(self.scalar_type()))
    return FallBack<at::_ops::kthvalue_values>(self, k, dim, keepdim, values, indices);
  return Pick(self, dim, at::full_like(self.narrow(dim, 0, 1), k - 1, at::kLong), keepdim, values, indices);
}

// The lower of the two middle elements; the first NaN, if there is one.
ValuesAndIndices Median(const at::Tensor& self, int64_t given_dim, bool keepdim, at::Tensor& values,
                        at::Tensor& indices) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  if (self.dim() == 0 && IsNumber(self.scalar_type())) return Only(self, values, indices);
  if (self.numel() == 0 || !IsNumber(self.scalar_type()))
    return FallBack<at::_ops::median_dim_values>(self, dim, keepdim, values, indices);
  const int64_t n = self.size(dim);
  at::Tensor place = at::full_like(self.narrow(dim, 0, 1), (n - 1) / 2, at::kLong);
  if (self.is_floating_point()) {
    const at::Tensor missing = self.isnan().sum(dim, /*keepdim=*/true);
    place = at::where(missing.gt(0), n - missing, place);
  }
  return Pick(self, dim, place, keepdim, values, indices);
}
at::Tensor MedianOfAll(const at::Tensor& self) {
  if (self.numel() == 0) return FallBack<at::_ops::median>(self);
  return std::get<0>(self.reshape({-1}).median(0));
}

// The lower of the two middle numbers, of which NaN, sorted behind them, is none unless there is no other.
ValuesAndIndices NanMedian(const at::Tensor& self, int64_t given_dim, bool keepdim, at::Tensor& values,
                           at::Tensor& indices) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  if (self.dim() == 0 && IsNumber(self.scalar_type())) return Only(self, values, indices);
  if (self.numel() == 0 || !IsNumber(self.scalar_type()))
    return FallBack<at::_ops::nanmedian_dim_values>(self, dim, keepdim, values, indices);
  if (!self.is_floating_point()) return Median(self, dim, keepdim, values, indices);
  const at::Tensor numbers = self.isnan().logical_not().sum(dim, /*keepdim=*/true);
  return Pick(self, dim, (numbers - 1).clamp_min(0).div(2, "floor"), keepdim, values, indices);
}
at::Tensor NanMedianOfAll(const at::Tensor& self) {
  if (self.numel() == 0) return FallBack<at::_ops::nanmedian>(self);
  return std::get<0>(self.reshape({-1}).nanmedian(0));
}

// The most frequent element; a mask's are counted as bytes.
ValuesAndIndices ModeOut(const at::Tensor& self, int64_t given_dim, bool keepdim, at::Tensor& values,
                         at::Tensor& indices) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  KernelCall call("Mode", "npu.aten");
  const bool truth = self.scalar_type() == at::kBool;
  if (self.numel() == 0 || !(truth || call.Takes(0, self.scalar_type())))
    return FallBack<at::_ops::mode_values>(self, dim, keepdim, values, indices);
  if (self.dim() == 0) return Only(self, values, indices);
  CheckResultTypes(self, values, indices);
  const at::Tensor x = Dense(self);
  const std::vector<at::Tensor> found = call.In(truth ? x.view(at::kByte) : x).Set("axis", dim).Run(2);
  const auto deliver = [&](const at::Tensor& result, at::Tensor& out) {
    const at::Tensor shaped = keepdim ? result : result.squeeze(dim);
    at::native::resize_output(out, shaped.sizes());
    out.copy_(shaped);
  };
  deliver(found[0], values);
  deliver(found[1], indices);
  return {values, indices};
}
std::tuple<at::Tensor, at::Tensor> Mode(const at::Tensor& self, int64_t dim, bool keepdim) {
  at::Tensor values = Empty({0}, self.scalar_type(), self), indices = Empty({0}, at::kLong, self);
  ModeOut(self, dim, keepdim, values, indices);
  return {values, indices};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("kthvalue.values", &KthValue);
  m.impl("median.dim_values", &Median);
  m.impl("median", &MedianOfAll);
  m.impl("nanmedian.dim_values", &NanMedian);
  m.impl("nanmedian", &NanMedianOfAll);
  m.impl("mode", &Mode);
  m.impl("mode.values", &ModeOut);
}

}  // namespace
}  // namespace npu::aten
