// Rows of sequences of different lengths, one behind the other, and the same padded to one length.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_jagged_to_padded_dense_forward_ops.h>
#include <ATen/ops/_padded_dense_to_jagged_forward_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

at::Tensor CountUpTo(int64_t n, const at::Tensor& offsets) { return at::arange(n, offsets.options()); }

// [rows, ...] as a vector of rows of elements beside `mask`, which has one element for each.
at::Tensor Beside(const at::Tensor& mask, int64_t rank) {
  std::vector<int64_t> sizes = mask.sizes().vec();
  sizes.resize(static_cast<size_t>(rank), 1);
  return mask.view(sizes);
}

at::Tensor ToPadded(const at::Tensor& values, at::TensorList offsets, at::IntArrayRef max_lengths, double padding) {
  if (offsets.size() != 1 || max_lengths.size() != 1)  // sequences of sequences
    return FallBack<at::_ops::_jagged_to_padded_dense_forward>(values, offsets, max_lengths, padding);
  const int64_t count = offsets[0].numel() - 1, length = max_lengths[0];
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = length;
  sizes.insert(sizes.begin(), count);
  at::Tensor padded = Empty(sizes, values.scalar_type(), values);
  if (values.numel() == 0 || padded.numel() == 0) return padded.fill_(padding);
  const at::Tensor row = offsets[0].narrow(0, 0, count).unsqueeze(1) + CountUpTo(length, offsets[0]);
  const at::Tensor beyond = row.ge(offsets[0].narrow(0, 1, count).unsqueeze(1));
  padded.copy_(values.index_select(0, row.masked_fill(beyond, 0).view({-1})).view(sizes));
  return padded.masked_fill_(Beside(beyond, padded.dim()), padding);
}

// Without the number of rows, the host waits for the last offset.
at::Tensor ToJagged(const at::Tensor& dense, at::TensorList offsets, std::optional<int64_t> total) {
  if (offsets.size() != 1 || dense.dim() < 2)
    return FallBack<at::_ops::_padded_dense_to_jagged_forward>(dense, offsets, total);
  const at::Tensor& from = offsets[0];
  const int64_t count = from.numel() - 1, length = dense.size(1);
  TORCH_CHECK(dense.size(0) == count, "_padded_dense_to_jagged_forward expected ", count, " sequences, got ",
              dense.size(0));
  const int64_t rows = total ? *total : from.select(0, count).item<int64_t>();
  std::vector<int64_t> sizes = dense.sizes().slice(1).vec();
  sizes[0] = rows;
  at::Tensor values = Empty(sizes, dense.scalar_type(), dense);
  if (values.numel() == 0) return values;
  if (dense.numel() == 0) return values.zero_();
  const at::Tensor each = CountUpTo(rows, from);
  const at::Tensor sequence =
      at::searchsorted(from.narrow(0, 1, count), each, /*out_int32=*/false, /*right=*/true).clamp_max(count - 1);
  const at::Tensor place = each - from.index_select(0, sequence);
  const at::Tensor beyond = place.ge(length);
  const at::Tensor row = sequence * length + place.masked_fill(beyond, 0);
  values.copy_(dense.flatten(0, 1).index_select(0, row));
  return values.masked_fill_(Beside(beyond, values.dim()), 0);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_jagged_to_padded_dense_forward", &ToPadded);
  m.impl("_padded_dense_to_jagged_forward", &ToJagged);
}

}  // namespace
}  // namespace npu::aten
