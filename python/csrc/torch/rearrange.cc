// The same elements in another order.
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <vector>

#include "ep/runtime/strided_copy.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

// A copy that walks the flipped dimensions backwards, from their ends.
at::Tensor Flip(const at::Tensor& self, at::IntArrayRef dims) {
  const auto flipped = at::dim_list_to_bitset(dims, static_cast<size_t>(self.dim()));
  at::Tensor out = at::empty_like(self);
  if (out.numel() == 0) return out;
  CheckWithinStorage(self);
  std::vector<int64_t> strides = self.strides().vec();
  int64_t begin = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!flipped[static_cast<size_t>(d)]) continue;
    int64_t& stride = strides[static_cast<size_t>(d)];
    begin += (self.size(d) - 1) * stride;
    stride = -stride;
  }
  const auto* from =
      static_cast<const char*>(self.const_data_ptr()) + begin * static_cast<int64_t>(self.element_size());
  LaunchStridedCopy(StreamOf(self), "copy", MakeStridedPair(self.sizes(), out.strides(), strides), self.element_size(),
                    out.mutable_data_ptr(), from);
  return out;
}

at::Tensor RollDim(const at::Tensor& self, int64_t shift, int64_t given_dim) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  const int64_t size = self.size(dim);
  const int64_t first = size == 0 ? 0 : ((-shift % size) + size) % size;
  return at::cat({self.narrow(dim, first, size - first), self.narrow(dim, 0, first)}, dim);
}

at::Tensor Roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (dims.empty() && shifts.size() == 1) return RollDim(self.reshape({-1}), shifts[0], 0).view(self.sizes());
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  at::Tensor rolled = self;
  for (size_t i = 0; i < dims.size(); ++i) rolled = RollDim(rolled, shifts[i], dims[i]);
  return rolled;
}

at::Tensor ChannelShuffle(const at::Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  const int64_t channels = self.size(1);
  TORCH_CHECK(channels % groups == 0, "Number of channels must be divisible by groups. Got ", channels,
              " channels and ", groups, " groups.");
  return self.unflatten(1, {groups, channels / groups}).transpose(1, 2).flatten(1, 2).contiguous();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("flip", &Flip);
  m.impl("roll", &Roll);
  m.impl("channel_shuffle", &ChannelShuffle);
}

}  // namespace
}  // namespace npu::aten
