// Where numbers stand in sorted ones: searchsorted and bucketize.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted_ops.h>
#include <torch/library.h>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"

namespace npu::aten {
namespace {

using Side = std::optional<c10::string_view>;
using MaybeTensor = std::optional<at::Tensor>;

bool FromTheRight(bool right, Side side) {
  TORCH_CHECK(!side || *side == "left" || *side == "right",
              "torch.searchsorted(): side can only be 'left' or 'right' but got ", side.value_or(""));
  TORCH_CHECK(!side || !right || *side == "right",
              "torch.searchsorted(): side and right can't be set to opposites, got side of ", side.value_or(""),
              " while right was True");
  return right || (side && *side == "right");
}

void Check(const at::Tensor& sorted, const at::Tensor& self, const at::Tensor& out, bool out_int32,
           const MaybeTensor& sorter) {
  TORCH_CHECK(sorted.dim() > 0, "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0");
  bool rows_match = sorted.dim() == 1 || sorted.dim() == self.dim();
  for (int64_t d = 0; rows_match && d < sorted.dim() - 1; ++d) rows_match = sorted.size(d) == self.size(d);
  TORCH_CHECK(rows_match,
              "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
              "tensor and input value tensor must match, but we got boundaries tensor ",
              sorted.sizes(), " and input value tensor ", self.sizes());
  const at::ScalarType wanted = out_int32 ? at::kInt : at::kLong;
  TORCH_CHECK(out.scalar_type() == wanted, "torch.searchsorted(): output tensor's dtype is wrong, expected ", wanted,
              ", got ", out.scalar_type());
  if (!sorter || !sorter->defined()) return;
  TORCH_CHECK(sorter->sizes() == sorted.sizes(),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor ",
              sorted.sizes(), " and got sorter tensor ", sorter->sizes());
  TORCH_CHECK(sorter->scalar_type() == at::kLong,
              "torch.searchsorted(): sorter must be a tensor of long dtype but got ", sorter->scalar_type());
  if (sorter->numel() == 0) return;
  TORCH_CHECK(sorter->min().item<int64_t>() >= 0 && sorter->max().item<int64_t>() < sorted.size(-1),
              "torch.searchsorted(): sorter index out of range");
}

at::Tensor& SearchOut(const at::Tensor& sorted, const at::Tensor& self, bool out_int32, bool given_right, Side side,
                      const MaybeTensor& sorter, at::Tensor& out) {
  Check(sorted, self, out, out_int32, sorter);
  const bool right = FromTheRight(given_right, side);
  at::native::resize_output(out, self.sizes());
  if (out.numel() == 0) return out;
  const at::ScalarType dtype = at::result_type(sorted, self);
  if (!IsNumber(dtype))
    return FallBack<at::_ops::searchsorted_Tensor_out>(sorted, self, out_int32, given_right, side, sorter, out);
  const at::Tensor rows = Dense(sorted, dtype), x = Dense(self, dtype), target = DenseTarget(out, at::kLong);
  const at::Tensor order = sorter && sorter->defined() ? Dense(*sorter) : at::Tensor();
  const int64_t length = sorted.size(-1), per_row = sorted.dim() == 1 ? self.numel() : self.size(-1);
  DispatchNumbers(dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(rows.const_data_ptr());
    const auto* values = static_cast<const T*>(x.const_data_ptr());
    const auto* by = order.defined() ? static_cast<const int64_t*>(order.const_data_ptr()) : nullptr;
    LaunchMap<int64_t>("searchsorted", target, [=](int64_t i) {
      const int64_t row = i / per_row * length;
      const auto value = static_cast<Real<T>>(values[i]);
      int64_t first = 0, last = length;
      while (first < last) {  // a value that is no number stands behind all
        const int64_t middle = first + (last - first) / 2, place = by == nullptr ? middle : by[row + middle];
        const auto bound = static_cast<Real<T>>(from[row + place]);
        if (right ? !(bound > value) : !(bound >= value))
          first = middle + 1;
        else
          last = middle;
      }
      return first;
    });
  });
  return Deliver(target, out);
}
at::Tensor Search(const at::Tensor& sorted, const at::Tensor& self, bool out_int32, bool right, Side side,
                  const MaybeTensor& sorter) {
  at::Tensor out = Empty({0}, out_int32 ? at::kInt : at::kLong, sorted);
  return SearchOut(sorted, self, out_int32, right, side, sorter, out);
}

// A number has the type of what it is sought in, but where that cannot hold it.
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

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
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
