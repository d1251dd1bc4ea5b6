// Each position as often as a tensor says.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include <optional>

#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

// Position i belongs to the first repeats whose sum exceeds i. The host waits for the sum of all, unless it is given.
at::Tensor RepeatInterleave(const at::Tensor& repeats, std::optional<int64_t> size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat, got ", repeats.sizes());
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor, got ", repeats.scalar_type());
  if (repeats.numel() == 0) return Empty({0}, repeats.scalar_type(), repeats);
  const at::Tensor ends = repeats.cumsum(0, at::kLong);
  if (!size) {
    TORCH_CHECK(repeats.min().item<int64_t>() >= 0, "repeats can not be negative");
    size = ends.select(0, -1).item<int64_t>();
  }
  TORCH_CHECK(*size >= 0, "repeat_interleave expected an output_size of at least 0, got ", *size);
  if (*size == 0) return Empty({0}, repeats.scalar_type(), repeats);
  const at::Tensor places = at::arange(*size, ends.options());
  return at::searchsorted(ends, places, /*out_int32=*/false, /*right=*/true).to(repeats.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators(library).impl("repeat_interleave.Tensor", &RepeatInterleave);
}

}  // namespace
}  // namespace npu::aten
