// Elements by their position in the flattened tensor, and by their order among those that a mask selects.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <algorithm>

#include "python/csrc/torch/integer_indices.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

at::Tensor Take(const at::Tensor& self, const at::Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK_INDEX(self.numel() > 0 || index.numel() == 0, "take(): tried to take from an empty tensor");
  return self.reshape({-1}).index({index});
}

at::Tensor& Put(at::Tensor& self, const at::Tensor& given_index, const at::Tensor& source, bool accumulate) {
  const at::Tensor index = Int64Indices(given_index);
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, got ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(index.numel() == source.numel(),
              "put_(): Expected source and index to have the same number of elements, "
              "got ",
              source.numel(), " and ", index.numel());
  TORCH_CHECK_INDEX(self.numel() > 0 || index.numel() == 0, "put_(): tried to put elements into an empty tensor");
  at::assert_no_overlap(self, given_index);
  at::assert_no_overlap(self, source);
  if (index.numel() == 0) return self;
  at::Tensor flat = self.reshape({-1});
  flat.index_put_({index.reshape({-1})}, source.reshape({-1}), accumulate);
  return flat.is_alias_of(self) ? self : self.copy_(flat.view(self.sizes()));
}

// The selected elements become the source's, in order. Their number is known only on the device: a source with fewer
// elements is a device error at the next synchronisation.
at::Tensor& MaskedScatter(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  if (self.numel() == 0) return self;
  const at::Tensor picked = mask.expand(at::infer_size(mask.sizes(), self.sizes())).expand(self.sizes()).reshape({-1});
  if (source.numel() == 0) {
    TORCH_CHECK(!picked.any().item<bool>(),
                "masked_scatter: expected a source with as many elements as the mask picks, "
                "got none");
    return self;
  }
  const at::Tensor place = (picked.cumsum(0) - 1).masked_fill(picked.logical_not(), 0);
  const at::Tensor elements = source.reshape({-1}).index_select(0, place);
  return self.copy_(at::where(picked, elements, self.reshape({-1})).view(self.sizes()));
}

// The positions of the first `size` true elements, and rows of `fill` where there are fewer.
at::Tensor NonzeroStatic(const at::Tensor& self, int64_t size, int64_t fill) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  at::Tensor out = Empty({size, self.dim()}, at::kLong, self).fill_(fill);
  const at::Tensor found = self.nonzero();
  const int64_t count = std::min(size, found.size(0));
  out.narrow(0, 0, count).copy_(found.narrow(0, 0, count));
  return out;
}
at::Tensor& NonzeroStaticOut(const at::Tensor& self, int64_t size, int64_t fill, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong, "nonzero_static: Expected out tensor to have scalar type Long but got ",
              out.scalar_type());
  const at::Tensor positions = NonzeroStatic(self, size, fill);
  at::native::resize_output(out, positions.sizes());
  return out.copy_(positions);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("nonzero_static", &NonzeroStatic);
  m.impl("nonzero_static.out", &NonzeroStaticOut);
  m.impl("take", &Take);
  m.impl("put_", &Put);
  m.impl("masked_scatter_", &MaskedScatter);
}

}  // namespace
}  // namespace npu::aten
