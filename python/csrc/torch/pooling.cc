// Pooling over windows of images: [N, C, H, W] or [C, H, W].
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_max_pool2d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool2d_meta.h>
#include <ATen/ops/adaptive_max_pool2d_ops.h>
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/runtime/error.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// What one position of the output sees along one dimension: begin, begin + step, … below end.
struct Window {
  int64_t begin, end;
  int64_t padded;  // positions with the padding's
};
using Windows = std::vector<Window>;

int64_t At(at::IntArrayRef pair, size_t d) { return pair.size() == 1 ? pair[0] : pair[d]; }

Windows Sliding(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  Windows windows;
  for (int64_t o = 0; o < out; ++o) {
    int64_t begin = o * stride - padding;
    const int64_t reach = begin + (kernel - 1) * dilation + 1;
    const int64_t padded = std::min(reach, in + padding) - begin;
    while (begin < 0) begin += dilation;
    windows.push_back({begin, std::min(reach, in), padded});
  }
  return windows;
}
Windows Adaptive(int64_t in, int64_t out) {
  Windows windows;
  for (int64_t o = 0; o < out; ++o) {
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    windows.push_back({begin, end, end - begin});
  }
  return windows;
}

// The same windows for each of the planes.
struct Planes {
  int64_t count, height, width;  // of the input
  Windows rows, columns;
  int64_t row_step = 1, column_step = 1;

  int64_t inputs() const { return height * width; }
  int64_t outputs() const { return static_cast<int64_t>(rows.size() * columns.size()); }

  // f(plane, output's position in it, its row window, its column window), planes in parallel.
  template <class F>
  void ForEach(F f) const {
    ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        int64_t o = 0;
        for (const Window& row : rows)
          for (const Window& column : columns) f(plane, o++, row, column);
      }
    });
  }
};

Planes SlidingPlanes(const at::Tensor& input, const at::Tensor& output, at::IntArrayRef kernel,
                     at::IntArrayRef given_stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  const at::IntArrayRef stride = given_stride.empty() ? kernel : given_stride;
  const int64_t h = input.size(-2), w = input.size(-1);
  return {input.numel() / std::max<int64_t>(h * w, 1),
          h,
          w,
          Sliding(h, output.size(-2), At(kernel, 0), At(stride, 0), At(padding, 0), At(dilation, 0)),
          Sliding(w, output.size(-1), At(kernel, 1), At(stride, 1), At(padding, 1), At(dilation, 1)),
          At(dilation, 0),
          At(dilation, 1)};
}

// The greatest of each window and where it stands in its plane.
void Greatest(const char* op, const Planes& planes, const at::Tensor& self, at::Tensor& out, at::Tensor& indices) {
  if (out.numel() == 0) return;
  const at::Tensor x = Dense(self), y = DenseTarget(out, out.scalar_type()), at = DenseTarget(indices, at::kLong);
  DispatchNumbers(self.scalar_type(), [&]<class T>(T) {
    StreamOf(out).Launch(
        op, [planes, from = static_cast<const T*>(x.const_data_ptr()), to = static_cast<T*>(y.mutable_data_ptr()),
             places = static_cast<int64_t*>(at.mutable_data_ptr())] {
          planes.ForEach([&](int64_t plane, int64_t o, const Window& row, const Window& column) {
            const T* image = from + plane * planes.inputs();
            int64_t best = row.begin * planes.width + column.begin;
            for (int64_t r = row.begin; r < row.end; r += planes.row_step)
              for (int64_t c = column.begin; c < column.end; c += planes.column_step) {
                const int64_t here = r * planes.width + c;
                if (image[here] > image[best] || image[here] != image[here]) best = here;  // NaN is the greatest
              }
            to[plane * planes.outputs() + o] = image[best];
            places[plane * planes.outputs() + o] = best;
          });
        });
  });
  Deliver(y, out);
  Deliver(at, indices);
}

// Each gradient to where its maximum stands. Windows overlap: the sums are made in float and rounded once. An index
// beyond the plane is refused there.
at::Tensor& ToPlaces(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices, at::Tensor& out) {
  const int64_t inputs = self.size(-2) * self.size(-1);
  if (out.numel() == 0) return out;
  const int64_t planes = self.numel() / inputs;
  const at::Tensor g = Wide(grad).reshape({planes, -1});
  const at::Tensor sums = Empty({planes, inputs}, g.scalar_type(), self).zero_();
  sums.scatter_add_(1, indices.reshape({planes, -1}), g);
  return out.copy_(sums.view(self.sizes()));
}

std::tuple<at::Tensor&, at::Tensor&> MaxPool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                                             at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                                             at::Tensor& out, at::Tensor& indices) {
  InferTwo<at::meta::structured_max_pool2d_with_indices>(out, indices, self, kernel, stride, padding, dilation,
                                                         ceil_mode);
  if (!IsNumber(self.scalar_type()))
    return FallBack<at::_ops::max_pool2d_with_indices_out>(self, kernel, stride, padding, dilation, ceil_mode, out,
                                                           indices);
  Greatest("max_pool2d", SlidingPlanes(self, out, kernel, stride, padding, dilation), self, out, indices);
  return {out, indices};
}

at::Tensor& MaxPoolBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                            const at::Tensor& indices, at::Tensor& out) {
  OutputMeta<at::meta::structured_max_pool2d_with_indices_backward>(out).meta(grad, self, kernel, stride, padding,
                                                                              dilation, ceil_mode, indices);
  return ToPlaces(grad, self, indices, out);
}

Planes AdaptivePlanes(const at::Tensor& self, int64_t height, int64_t width) {
  const int64_t h = self.size(-2), w = self.size(-1);
  return {self.numel() / std::max<int64_t>(h * w, 1), h, w, Adaptive(h, height), Adaptive(w, width)};
}

std::tuple<at::Tensor&, at::Tensor&> AdaptiveMaxPool(const at::Tensor& self, at::IntArrayRef size, at::Tensor& out,
                                                     at::Tensor& indices) {
  InferTwo<at::meta::structured_adaptive_max_pool2d>(out, indices, self, size);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::adaptive_max_pool2d_out>(self, size, out, indices);
  Greatest("adaptive_max_pool2d", AdaptivePlanes(self, size[0], size[1]), self, out, indices);
  return {out, indices};
}
at::Tensor& AdaptiveMaxPoolBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices,
                                    at::Tensor& out) {
  Infer<at::meta::structured_adaptive_max_pool2d_backward>(out, grad, self, indices);
  return ToPlaces(grad, self, indices, out);
}

struct Averages {
  Planes planes;
  bool count_padding;
  int64_t divisor;  // 0: as many as the window has

  template <class R>
  R Divisor(const Window& row, const Window& column) const {
    if (divisor != 0) return static_cast<R>(divisor);
    return static_cast<R>(count_padding ? row.padded * column.padded
                                        : (row.end - row.begin) * (column.end - column.begin));
  }
};

void Average(const char* op, const Averages& averages, const at::Tensor& self, at::Tensor& out) {
  if (out.numel() == 0) return;
  const at::Tensor x = Dense(self), y = DenseTarget(out, self.scalar_type());
  DispatchNumbers(self.scalar_type(), [&]<class T>(T) {
    StreamOf(out).Launch(
        op, [averages, from = static_cast<const T*>(x.const_data_ptr()), to = static_cast<T*>(y.mutable_data_ptr())] {
          const Planes& planes = averages.planes;
          planes.ForEach([&](int64_t plane, int64_t o, const Window& row, const Window& column) {
            Real<T> sum = 0;
            for (int64_t r = row.begin; r < row.end; ++r)
              for (int64_t c = column.begin; c < column.end; ++c)
                sum += static_cast<Real<T>>(from[plane * planes.inputs() + r * planes.width + c]);
            to[plane * planes.outputs() + o] = static_cast<T>(sum / averages.Divisor<Real<T>>(row, column));
          });
        });
  });
  Deliver(y, out);
}

void AverageBackward(const char* op, const Averages& averages, const at::Tensor& grad, at::Tensor& out) {
  if (out.numel() == 0) return;
  const at::Tensor g = Dense(Wide(grad)), sums = Empty(out.sizes(), g.scalar_type(), out).zero_();
  DispatchNumbers(g.scalar_type(), [&]<class T>(T) {
    StreamOf(out).Launch(op, [averages, from = static_cast<const T*>(g.const_data_ptr()),
                              to = static_cast<T*>(sums.mutable_data_ptr())] {
      const Planes& planes = averages.planes;
      planes.ForEach([&](int64_t plane, int64_t o, const Window& row, const Window& column) {
        const T share = static_cast<T>(from[plane * planes.outputs() + o] / averages.Divisor<T>(row, column));
        for (int64_t r = row.begin; r < row.end; ++r)
          for (int64_t c = column.begin; c < column.end; ++c)
            to[plane * planes.inputs() + r * planes.width + c] += share;
      });
    });
  });
  out.copy_(sums);
}

at::Tensor& AvgPool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                    bool ceil_mode, bool count_padding, std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool2d>(out).meta(self, kernel, stride, padding, ceil_mode, count_padding,
                                                        divisor);
  TORCH_CHECK(divisor != 0, "divisor must be not zero");
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool2d_out>(self, kernel, stride, padding, ceil_mode, count_padding, divisor, out);
  Average("avg_pool2d", {SlidingPlanes(self, out, kernel, stride, padding, {1, 1}), count_padding, divisor.value_or(0)},
          self, out);
  return out;
}
at::Tensor& AvgPoolBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                            at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode, bool count_padding,
                            std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool2d_backward>(out).meta(grad, self, kernel, stride, padding, ceil_mode,
                                                                 count_padding, divisor);
  TORCH_CHECK(divisor != 0, "divisor must be not zero");
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool2d_backward_grad_input>(grad, self, kernel, stride, padding, ceil_mode,
                                                              count_padding, divisor, out);
  AverageBackward("avg_pool2d_backward",
                  {SlidingPlanes(self, grad, kernel, stride, padding, {1, 1}), count_padding, divisor.value_or(0)},
                  grad, out);
  return out;
}

Averages AdaptiveAverages(const at::Tensor& self, int64_t height, int64_t width) {
  return {AdaptivePlanes(self, height, width), false, 0};
}
void CheckImage(const char* op, const at::Tensor& self) {
  TORCH_CHECK((self.dim() == 3 || self.dim() == 4) && self.size(-1) > 0 && self.size(-2) > 0 && self.size(-3) > 0, op,
              "(): Expected 3D or 4D tensor with non-empty images, got ", self.sizes());
  TORCH_CHECK(IsRealFloat(self.scalar_type()), op, "(): expected real floats, got ", self.scalar_type());
}
at::Tensor AdaptiveAvgPool(const at::Tensor& self, at::IntArrayRef size) {
  CheckImage("adaptive_avg_pool2d", self);
  TORCH_CHECK(size.size() == 2 && size[0] >= 0 && size[1] >= 0,
              "adaptive_avg_pool2d: expected an output size of two, not negative, got ", size);
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  at::Tensor out = Empty(sizes, self.scalar_type(), self);
  Average("adaptive_avg_pool2d", AdaptiveAverages(self, size[0], size[1]), self, out);
  return out;
}
at::Tensor AdaptiveAvgPoolBackward(const at::Tensor& grad, const at::Tensor& self) {
  CheckImage("adaptive_avg_pool2d_backward", self);
  TORCH_CHECK(
      grad.dim() == self.dim() && grad.sizes().slice(0, self.dim() - 2) == self.sizes().slice(0, self.dim() - 2),
      "adaptive_avg_pool2d_backward: expected a gradient for an input of ", self.sizes(), ", got ", grad.sizes());
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  AverageBackward("adaptive_avg_pool2d_backward", AdaptiveAverages(self, grad.size(-2), grad.size(-1)), grad, out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("max_pool2d_with_indices.out", &MaxPool);
  m.impl("max_pool2d_with_indices_backward.grad_input", &MaxPoolBackward);
  m.impl("adaptive_max_pool2d.out", &AdaptiveMaxPool);
  m.impl("adaptive_max_pool2d_backward.grad_input", &AdaptiveMaxPoolBackward);
  m.impl("avg_pool2d.out", &AvgPool);
  m.impl("avg_pool2d_backward.grad_input", &AvgPoolBackward);
  m.impl("_adaptive_avg_pool2d", &AdaptiveAvgPool);
  m.impl("_adaptive_avg_pool2d_backward", &AdaptiveAvgPoolBackward);
}

}  // namespace
}  // namespace npu::aten
