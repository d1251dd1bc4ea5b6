// Max pools whose windows begin at random places, over two and over three dimensions.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/fractional_max_pool2d_backward_meta.h>
#include <ATen/ops/fractional_max_pool2d_meta.h>
#include <ATen/ops/fractional_max_pool3d_meta.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/pooling.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

using ValuesAndPlaces = std::tuple<at::Tensor&, at::Tensor&>;

at::Tensor CountTo(int64_t count, at::ScalarType dtype, const at::Tensor& beside) {
  return at::arange(count, beside.options().dtype(dtype));
}

// The positions in a line of `in` that each of `out` windows covers: [images, out, window]. A window begins a step of
// `alpha` behind the one before, from the image's sample, rounded down; the last one ends the line.
at::Tensor Positions(const at::Tensor& sample, int64_t in, int64_t out, int64_t window) {
  at::Tensor begins = Empty({sample.size(0), out}, at::kLong, sample).fill_(in - window);
  if (out > 1) {
    const at::Tensor count = CountTo(out - 1, sample.scalar_type(), sample);
    const double steps = static_cast<double>(out - 1), exact = static_cast<double>(in - window) / steps;
    const double alpha = sample.scalar_type() == at::kDouble ? exact : static_cast<float>(exact);
    const at::Tensor from = sample.unsqueeze(1);
    begins.narrow(1, 0, out - 1).copy_(((from + count) * alpha).trunc() - (from * alpha).trunc());
  }
  return begins.unsqueeze(2) + CountTo(window, at::kLong, sample);
}

// Values and places in an image, of the shape of `out`.
ValuesAndPlaces FractionalPool(size_t spatial, const at::Tensor& self, at::IntArrayRef window, at::IntArrayRef size,
                               const at::Tensor& samples, at::Tensor& out, at::Tensor& indices) {
  if (out.numel() == 0) return {out, indices};
  const auto rank = static_cast<int64_t>(spatial);
  const at::IntArrayRef image = self.sizes().slice(static_cast<size_t>(self.dim() - rank));
  const int64_t images = self.numel() / c10::multiply_integers(image);
  const at::Tensor each = samples.to(AccumulateType(self.scalar_type())).reshape({images, rank});
  // [images, out..., window...] in the order of dimensions; of two, torch draws the sample of the last one first.
  at::Tensor places;
  for (int64_t d = 0; d < rank; ++d) {
    const auto at = static_cast<size_t>(d);
    const int64_t drawn = rank == 2 ? 1 - d : d;
    std::vector<int64_t> shape(1 + 2 * spatial, 1);
    shape[0] = images;
    shape[1 + at] = size[at];
    shape[1 + spatial + at] = window[at];
    const at::Tensor along = Positions(each.select(1, drawn), image[at], size[at], window[at]).view(shape);
    places = places.defined() ? places * image[at] + along : along;
  }
  places = places.reshape({images, c10::multiply_integers(size) * c10::multiply_integers(window)});
  const std::vector<int64_t> rows{images, c10::multiply_integers(size), c10::multiply_integers(window)};
  const at::Tensor values = self.reshape({images, -1}).gather(1, places).view(rows);
  const auto [best, which] = values.max(2, /*keepdim=*/true);
  out.copy_(best.view(out.sizes()));
  indices.copy_(places.view(rows).gather(2, which).view(out.sizes()));
  return {out, indices};
}

ValuesAndPlaces FractionalPool2d(const at::Tensor& self, at::IntArrayRef window, at::IntArrayRef size,
                                 const at::Tensor& samples, at::Tensor& out, at::Tensor& indices) {
  InferTwo<at::meta::structured_fractional_max_pool2d>(out, indices, self, window, size, samples);
  return FractionalPool(2, self, window, size, samples, out, indices);
}
ValuesAndPlaces FractionalPool3d(const at::Tensor& self, at::IntArrayRef window, at::IntArrayRef size,
                                 const at::Tensor& samples, at::Tensor& out, at::Tensor& indices) {
  OutputMeta<at::meta::structured_fractional_max_pool3d, 2>(out, indices).meta(self, window, size, samples);
  return FractionalPool(3, self, window, size, samples, out, indices);
}

at::Tensor& FractionalPool2dBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef window,
                                     at::IntArrayRef size, const at::Tensor& indices, at::Tensor& out) {
  Infer<at::meta::structured_fractional_max_pool2d_backward>(out, grad, self, window, size, indices);
  return ToPlaces(2, grad, self, indices, out);
}
at::Tensor& FractionalPool3dBackwardOut(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef,
                                        at::IntArrayRef size, const at::Tensor& indices, at::Tensor& out) {
  TORCH_CHECK(size.size() == 3 && (self.dim() == 4 || self.dim() == 5) && grad.dim() == self.dim() &&
                  grad.sizes().slice(grad.sizes().size() - 3) == size && indices.sizes() == grad.sizes(),
              "fractional_max_pool3d_backward expected a gradient and indices of an output size ", size,
              " for an input of shape ", self.sizes(), ", got ", grad.sizes(), " and ", indices.sizes());
  at::native::resize_output(out, self.sizes());
  return ToPlaces(3, grad, self, indices, out);
}
at::Tensor FractionalPool3dBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef window,
                                    at::IntArrayRef size, const at::Tensor& indices) {
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  return FractionalPool3dBackwardOut(grad, self, window, size, indices, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("fractional_max_pool2d.output", &FractionalPool2d);
  m.impl("fractional_max_pool3d.output", &FractionalPool3d);
  m.impl("fractional_max_pool2d_backward.grad_input", &FractionalPool2dBackward);
  m.impl("fractional_max_pool3d_backward.grad_input", &FractionalPool3dBackwardOut);
  m.impl("fractional_max_pool3d_backward", &FractionalPool3dBackward);
}

}  // namespace
}  // namespace npu::aten
