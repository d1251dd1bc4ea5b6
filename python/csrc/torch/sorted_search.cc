// Positions of values in sorted ones: searchsorted and bucketize.
#include <ATen/core/Tensor.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted_ops.h>
#include <torch/library.h>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

using Side = std::optional<c10::string_view>;

at::Tensor& SearchOut(const at::Tensor& sorted, const at::Tensor& self, bool out_int32, bool given_right, Side side,
                      const MaybeTensor& sorter, at::Tensor& out) {
  const at::Tensor given_order = sorter.value_or(at::Tensor());
  at::native::searchsorted_pre_check(sorted, self, out, out_int32, given_right, side, given_order);
  const bool right = given_right || side == "right";
  at::native::resize_output(out, self.sizes());
  if (out.numel() == 0) return out;
  const at::ScalarType dtype = at::result_type(sorted, self);
  KernelCall call("SearchSorted", "npu.aten");
  if (!call.Takes(0, dtype))
    return FallBack<at::_ops::searchsorted_Tensor_out>(sorted, self, out_int32, given_right, side, sorter, out);
  at::Tensor x = self, rows = sorted, order = given_order;  // warns once if not contiguous
  at::native::searchsorted_maybe_trim_input_tensors(x, rows, order, self, sorted, given_order);
  const int64_t per_row = sorted.dim() == 1 ? self.numel() : self.size(-1), count = out.numel() / per_row;
  call.In(Dense(rows, dtype), {count, sorted.size(-1)}).In(Dense(x, dtype), {count, per_row});
  if (order.defined()) call.In(order, {count, sorted.size(-1)});
  call.Set("right", int64_t{right}).Into(out);
  return out;
}
at::Tensor Search(const at::Tensor& sorted, const at::Tensor& self, bool out_int32, bool right, Side side,
                  const MaybeTensor& sorter) {
  at::Tensor out = Empty({0}, out_int32 ? at::kInt : at::kLong, sorted);
  return SearchOut(sorted, self, out_int32, right, side, sorter, out);
}

// The scalar gets the dtype of `sorted`, unless that cannot hold it.
at::Tensor Sought(const c10::Scalar& value, const at::Tensor& sorted) {
  return ScalarTensor(value, at::result_type(sorted, value), sorted);
}
at::Tensor& SearchScalarOut(const at::Tensor& sorted, const c10::Scalar& self, bool out_int32, bool right, Side side,
                            const MaybeTensor& sorter, at::Tensor& out) {
  TORCH_CHECK(sorted.dim() == 1,
              "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but got "
              "boundaries tensor dim ",
              sorted.dim());
  return SearchOut(sorted, Sought(self, sorted), out_int32, right, side, sorter, out);
}
at::Tensor SearchScalar(const at::Tensor& sorted, const c10::Scalar& self, bool out_int32, bool right, Side side,
                        const MaybeTensor& sorter) {
  at::Tensor out = Empty({0}, out_int32 ? at::kInt : at::kLong, sorted);
  return SearchScalarOut(sorted, self, out_int32, right, side, sorter, out);
}

at::Tensor& BucketizeOut(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right,
                         at::Tensor& out) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return SearchOut(boundaries, self, out_int32, right, std::nullopt, std::nullopt, out);
}
at::Tensor Bucketize(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  at::Tensor out = Empty({0}, out_int32 ? at::kInt : at::kLong, boundaries);
  return BucketizeOut(self, boundaries, out_int32, right, out);
}
at::Tensor BucketizeScalar(const c10::Scalar& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  return Bucketize(Sought(self, boundaries), boundaries, out_int32, right);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("searchsorted.Tensor", &Search);
  m.impl("searchsorted.Tensor_out", &SearchOut);
  m.impl("searchsorted.Scalar", &SearchScalar);
  m.impl("searchsorted.Scalar_out", &SearchScalarOut);
  m.impl("bucketize.Tensor", &Bucketize);
  m.impl("bucketize.Tensor_out", &BucketizeOut);
  m.impl("bucketize.Scalar", &BucketizeScalar);
}

}  // namespace
}  // namespace npu::aten
