// The distinct elements of a tensor, or slices along a dimension. Their number determines the result's shape, so the
// host waits for it.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2_ops.h>
#include <ATen/ops/_unique_ops.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/unique_consecutive_ops.h>
#include <ATen/ops/unique_dim_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // values, inverse indices, counts

bool Known(const at::Tensor& self) {
  return self.scalar_type() == at::kBool || KernelCall("UniqueRuns", "npu.aten").Takes(0, self.scalar_type());
}

// The distinct rows of [n, width]; outputs that were not requested are empty. The kernel orders the rows and marks
// those that differ from the previous one.
Three Distinct(const at::Tensor& rows, bool sort, bool inverse, bool counts) {
  const at::Tensor numbers = Dense(rows.scalar_type() == at::kBool ? rows.view(at::kByte) : rows);
  const std::vector<at::Tensor> runs =
      KernelCall("UniqueRuns", "npu.aten").In(numbers).Set("sorted", int64_t{sort}).Run(2);
  const at::Tensor &order = runs[0], &marks = runs[1], starts = marks.nonzero().squeeze(1);
  at::Tensor where = Empty({inverse ? rows.size(0) : 0}, at::kLong, rows), often = Empty({0}, at::kLong, rows);
  if (inverse && rows.size(0) > 0) where.scatter_(0, order, marks.cumsum(0).sub_(1));
  if (counts && starts.numel() > 0) {
    const at::Tensor ends =
        at::cat({starts.narrow(0, 1, starts.numel() - 1), at::full({1}, rows.size(0), starts.options())});
    often = ends - starts;
  }
  return {rows.index_select(0, order.index_select(0, starts)), where, often};
}

Three Flat(const at::Tensor& self, bool sort, bool inverse, bool counts) {
  auto [values, where, often] = Distinct(self.reshape({-1, 1}), sort, inverse, counts);
  return {values.squeeze(1), inverse ? where.view(self.sizes()) : where, often};
}

Three Slices(const at::Tensor& self, int64_t dim, bool sort, bool inverse, bool counts) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const auto empty = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(empty == 1, "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    const at::Tensor none = Empty({0}, at::kLong, self);
    return {Empty(self.sizes(), self.scalar_type(), self), none, none.clone()};
  }
  TORCH_CHECK(empty == 0, "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  const at::Tensor front = self.movedim(dim, 0);
  auto [rows, where, often] = Distinct(front.reshape({front.size(0), -1}), sort, inverse, counts);
  std::vector<int64_t> sizes = front.sizes().vec();
  sizes[0] = rows.size(0);
  return {rows.view(sizes).movedim(0, dim), where, often};
}

Three Unique2(const at::Tensor& self, bool sorted, bool inverse, bool counts) {
  if (!Known(self)) return FallBack<at::_ops::_unique2>(self, sorted, inverse, counts);
  return Flat(self, true, inverse, counts);
}
std::tuple<at::Tensor, at::Tensor> Unique(const at::Tensor& self, bool sorted, bool inverse) {
  if (!Known(self)) return FallBack<at::_ops::_unique>(self, sorted, inverse);
  auto [values, where, often] = Flat(self, true, inverse, false);
  return {values, where};
}
Three UniqueDim(const at::Tensor& self, int64_t dim, bool sorted, bool inverse, bool counts) {
  if (!Known(self)) return FallBack<at::_ops::unique_dim>(self, dim, sorted, inverse, counts);
  return Slices(self, dim, true, inverse, counts);
}
Three UniqueConsecutive(const at::Tensor& self, bool inverse, bool counts, std::optional<int64_t> dim) {
  if (!Known(self)) return FallBack<at::_ops::unique_consecutive>(self, inverse, counts, dim);
  if (dim) return Slices(self, *dim, false, inverse, counts);
  return Flat(self, false, inverse, counts);
}
Three UniqueDimConsecutive(const at::Tensor& self, int64_t dim, bool inverse, bool counts) {
  return UniqueConsecutive(self, inverse, counts, dim);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_unique", &Unique);
  m.impl("_unique2", &Unique2);
  m.impl("unique_dim", &UniqueDim);
  m.impl("unique_consecutive", &UniqueConsecutive);
  m.impl("unique_dim_consecutive", &UniqueDimConsecutive);
}

}  // namespace
}  // namespace npu::aten
