// Values of a max pool written back to where they were, with zeros elsewhere.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

// The sizes of the result of an operator over `spatial` dimensions.
std::vector<int64_t> UnpooledSizes(const char* op, size_t spatial, const at::Tensor& self, const at::Tensor& indices,
                                   at::IntArrayRef output_size) {
  const auto rank = static_cast<int64_t>(spatial);
  TORCH_CHECK(indices.scalar_type() == at::kLong,
              "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(output_size.size() == spatial, op, " expected ", spatial, " elements in output_size, got ", output_size);
  TORCH_CHECK(self.dim() == rank + 1 || self.dim() == rank + 2, op, " expected an input of ", rank + 1, " or ",
              rank + 2, " dimensions, got ", self.sizes());
  TORCH_CHECK(self.sizes() == indices.sizes(), op, " expected indices of the input's shape ", self.sizes(), ", got ",
              indices.sizes());
  for (int64_t d = self.dim() - rank; d < self.dim(); ++d)
    TORCH_CHECK(self.size(d) > 0, op, " expected images with elements, got ", self.sizes());
  std::vector<int64_t> sizes = self.sizes().slice(0, static_cast<size_t>(self.dim() - rank)).vec();
  sizes.insert(sizes.end(), output_size.begin(), output_size.end());
  return sizes;
}

// Of values with the same index the last one stays. scatter_ rejects an index beyond the image.
at::Tensor Unpool(const char* op, size_t spatial, const at::Tensor& self, const at::Tensor& indices,
                  at::IntArrayRef output_size) {
  const std::vector<int64_t> sizes = UnpooledSizes(op, spatial, self, indices, output_size);
  at::Tensor out = Empty(sizes, self.scalar_type(), self).zero_();
  if (self.numel() == 0) return out;
  const int64_t images = self.numel() / c10::multiply_integers(self.sizes().slice(sizes.size() - spatial));
  out.view({images, -1}).scatter_(1, indices.reshape({images, -1}), self.reshape({images, -1}));
  return out;
}

at::Tensor Unpool2d(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef size) {
  return Unpool("max_unpool2d", 2, self, indices, size);
}
at::Tensor& Unpool2dOut(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef size, at::Tensor& out) {
  at::native::resize_output(out, UnpooledSizes("max_unpool2d", 2, self, indices, size));
  return out.copy_(Unpool2d(self, indices, size));
}

at::Tensor Unpool3d(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef size, at::IntArrayRef stride,
                    at::IntArrayRef padding) {
  TORCH_CHECK(stride.size() == 3 && padding.size() == 3,
              "max_unpool3d expected 3 elements in stride and in padding, got ", stride, " and ", padding);
  for (const int64_t step : stride)
    TORCH_CHECK(step > 0, "max_unpool3d expected strides greater than zero, got ", stride);
  return Unpool("max_unpool3d", 3, self, indices, size);
}
at::Tensor& Unpool3dOut(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef size, at::IntArrayRef stride,
                        at::IntArrayRef padding, at::Tensor& out) {
  at::native::resize_output(out, UnpooledSizes("max_unpool3d", 3, self, indices, size));
  return out.copy_(Unpool3d(self, indices, size, stride, padding));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("max_unpool2d", &Unpool2d);
  m.impl("max_unpool2d.out", &Unpool2dOut);
  m.impl("max_unpool3d", &Unpool3d);
  m.impl("max_unpool3d.out", &Unpool3dOut);
}

}  // namespace
}  // namespace npu::aten
