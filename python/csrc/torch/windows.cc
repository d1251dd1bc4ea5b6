// Sliding windows of images as columns (im2col), and columns summed at their windows' positions (col2im).
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

// Positions of a window of `kernel` elements along one dimension of `size` elements.
struct Slide {
  int64_t size, kernel, dilation, padding, stride, count;

  Slide(size_t d, int64_t size, at::IntArrayRef kernels, at::IntArrayRef dilations, at::IntArrayRef paddings,
        at::IntArrayRef strides)
      : size(size),
        kernel(At(kernels, d)),
        dilation(At(dilations, d)),
        padding(At(paddings, d)),
        stride(At(strides, d)) {
    constexpr int64_t kMost = int64_t{1} << 30;  // no product of two overflows
    TORCH_CHECK(kernel > 0 && dilation > 0 && stride > 0 && padding >= 0 && size >= 0 && kernel < kMost &&
                    dilation < kMost && stride < kMost && padding < kMost && size < kMost,
                "unfold and fold: expected kernel, dilation and stride > 0 and padding >= 0, got ", kernel, ", ",
                dilation, ", ", stride, " and ", padding, " for a size of ", size);
    const int64_t room = size + 2 * padding - (dilation * (kernel - 1) + 1);
    TORCH_CHECK(room >= 0, "unfold and fold: a kernel of ", kernel, " with dilation ", dilation,
                " does not fit into a size of ", size, " padded by ", padding);
    count = room / stride + 1;
  }
  static int64_t At(at::IntArrayRef pair, size_t d) {
    TORCH_CHECK(pair.size() == 1 || pair.size() == 2, "unfold and fold: expected two numbers, got ", pair);
    return pair[pair.size() == 1 ? 0 : d];
  }
  int64_t padded() const { return size + 2 * padding; }
  // The elements that the kernel's element `k` covers along dimension `dim` of a padded image.
  at::Tensor Seen(const at::Tensor& image, int64_t dim, int64_t k) const {
    const int64_t begin = k * dilation;
    return image.slice(dim, begin, begin + (count - 1) * stride + 1, stride);
  }
  at::Tensor Inside(const at::Tensor& image, int64_t dim) const { return image.narrow(dim, padding, size); }
};

at::Tensor Im2Col(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation, at::IntArrayRef padding,
                  at::IntArrayRef stride) {
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "im2col: Expected 3D or 4D input, got ", self.sizes());
  const at::Tensor x = self.dim() == 3 ? self.unsqueeze(0) : self;
  const Slide rows(0, x.size(2), kernel, dilation, padding, stride);
  const Slide columns(1, x.size(3), kernel, dilation, padding, stride);
  const int64_t n = x.size(0), c = x.size(1);
  at::Tensor padded = at::zeros({n, c, rows.padded(), columns.padded()}, x.options());
  columns.Inside(rows.Inside(padded, 2), 3).copy_(x);
  const at::Tensor out = Empty({n, c, rows.kernel, columns.kernel, rows.count, columns.count}, x.scalar_type(), x);
  for (int64_t i = 0; i < rows.kernel; ++i)
    for (int64_t j = 0; j < columns.kernel; ++j)
      out.select(2, i).select(2, j).copy_(columns.Seen(rows.Seen(padded, 2, i), 3, j));
  const at::Tensor result = out.view({n, c * rows.kernel * columns.kernel, rows.count * columns.count});
  return self.dim() == 3 ? result.squeeze(0) : result;
}

at::Tensor Col2Im(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef kernel, at::IntArrayRef dilation,
                  at::IntArrayRef padding, at::IntArrayRef stride) {
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "col2im: Expected 2D or 3D input, got ", self.sizes());
  const at::Tensor x = self.dim() == 2 ? self.unsqueeze(0) : self;
  const Slide rows(0, Slide::At(size, 0), kernel, dilation, padding, stride);
  const Slide columns(1, Slide::At(size, 1), kernel, dilation, padding, stride);
  const int64_t n = x.size(0), area = rows.kernel * columns.kernel, c = x.size(1) / area;
  TORCH_CHECK(x.size(1) == c * area && x.size(2) == rows.count * columns.count, "col2im: expected [N, C * ", area, ", ",
              rows.count * columns.count, "] for an output of ", size, ", got ", self.sizes());
  const at::Tensor parts = Wide(x).reshape({n, c, rows.kernel, columns.kernel, rows.count, columns.count});
  const at::Tensor padded = at::zeros({n, c, rows.padded(), columns.padded()}, parts.options());
  for (int64_t i = 0; i < rows.kernel; ++i)
    for (int64_t j = 0; j < columns.kernel; ++j)
      columns.Seen(rows.Seen(padded, 2, i), 3, j).add_(parts.select(2, i).select(2, j));
  const at::Tensor result = columns.Inside(rows.Inside(padded, 2), 3).to(x.scalar_type()).contiguous();
  return self.dim() == 2 ? result.squeeze(0) : result;
}

// The gradient of Tensor.unfold: one sum per window, or per element of a window, whichever are fewer.
at::Tensor UnfoldBackward(const at::Tensor& grad, at::IntArrayRef sizes, int64_t given_dim, int64_t size,
                          int64_t step) {
  const int64_t dim = at::maybe_wrap_dim(given_dim, static_cast<int64_t>(sizes.size()));
  const at::Tensor sums = at::zeros(sizes, Wide(grad).options());
  if (sizes.empty()) return sums.add_(Wide(grad).reshape({-1}).sum()).to(grad.scalar_type());
  TORCH_CHECK(sums.unfold(dim, size, step).sizes() == grad.sizes(), "unfold_backward: expected a gradient of ",
              sums.unfold(dim, size, step).sizes(), ", got ", grad.sizes());
  const at::Tensor g = Wide(grad);
  const int64_t windows = grad.size(dim);
  if (grad.numel() == 0) return sums.to(grad.scalar_type());
  if (windows < size) {
    for (int64_t w = 0; w < windows; ++w) sums.narrow(dim, w * step, size).add_(g.select(dim, w).movedim(-1, dim));
  } else {
    for (int64_t k = 0; k < size; ++k) sums.slice(dim, k, k + (windows - 1) * step + 1, step).add_(g.select(-1, k));
  }
  return sums.to(grad.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("im2col", &Im2Col);
  m.impl("col2im", &Col2Im);
  m.impl("unfold_backward", &UnfoldBackward);
}

}  // namespace
}  // namespace npu::aten
