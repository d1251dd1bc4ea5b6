#include "python/csrc/torch/pooling.h"

#include <utility>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {

std::vector<int64_t> ForEach(size_t dimensions, at::IntArrayRef values) {
  return values.size() == 1 ? std::vector<int64_t>(dimensions, values[0]) : values.vec();
}

std::vector<int64_t> Batched(size_t dimensions, const at::Tensor& images) {
  std::vector<int64_t> sizes = images.sizes().vec();
  if (sizes.size() == dimensions + 1) sizes.insert(sizes.begin(), 1);
  return sizes;
}

KernelCall& Slide(size_t dimensions, KernelCall& call, at::IntArrayRef kernel, at::IntArrayRef stride,
                  at::IntArrayRef padding, bool ceil_mode) {
  const std::vector<int64_t> sides = ForEach(dimensions, padding);
  std::vector<int64_t> pads = sides;
  pads.insert(pads.end(), sides.begin(), sides.end());
  return call.Set("kernel_shape", ForEach(dimensions, kernel))
      .Set("strides", ForEach(dimensions, stride.empty() ? kernel : stride))
      .Set("pads", std::move(pads))
      .Set("ceil_mode", static_cast<int64_t>(ceil_mode));
}

KernelCall& SlideAverage(size_t dimensions, KernelCall& call, at::IntArrayRef kernel, at::IntArrayRef stride,
                         at::IntArrayRef padding, bool ceil_mode, bool count_padding, std::optional<int64_t> divisor) {
  Slide(dimensions, call, kernel, stride, padding, ceil_mode)
      .Set("count_include_pad", static_cast<int64_t>(count_padding));
  return divisor ? call.Set("divisor", *divisor) : call;
}

// Windows overlap, so sums are computed in float and rounded once. scatter_add_ rejects an index beyond the image.
at::Tensor& ToPlaces(size_t dimensions, const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices,
                     at::Tensor& out) {
  if (out.numel() == 0) return out;
  int64_t inputs = 1;
  for (size_t d = 1; d <= dimensions; ++d) inputs *= self.size(-static_cast<int64_t>(d));
  const int64_t images = self.numel() / inputs;
  const at::Tensor g = Wide(grad).reshape({images, -1});
  const at::Tensor sums = Empty({images, inputs}, g.scalar_type(), self).zero_();
  sums.scatter_add_(1, indices.reshape({images, -1}), g);
  return out.copy_(sums.view(self.sizes()));
}

}  // namespace npu::aten
