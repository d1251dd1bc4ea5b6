// Convolutions of any number of dimensions: those of floats by the kernel of ONNX's Conv; gradients, transposed ones
// and integers as matmuls, in which the windows that the kernel covers are a strided view of the padded input.
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using c10::multiply_integers;
using Sizes = std::vector<int64_t>;

Sizes Spatial(const at::Tensor& t) { return t.sizes().slice(2).vec(); }

// A convolution from [N, C, input...] to [N, M, output...] with a weight [M, C / groups, kernel...]; a transposed one
// is its gradient, in the opposite direction.
struct Convolution {
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;
  Sizes kernel, input, output;  // spatial

  size_t rank() const { return kernel.size(); }

  Sizes PaddedInput() const {
    Sizes sizes = input;
    for (size_t d = 0; d < rank(); ++d) sizes[d] += 2 * padding[d];
    return sizes;
  }

  // The windows of a dense padded input [N, C, ...]: [N, groups, C / groups, kernel..., output...].
  at::Tensor Windows(const at::Tensor& padded) const {
    const int64_t channels = padded.size(1) / groups;
    Sizes sizes{padded.size(0), groups, channels};
    Sizes strides{padded.stride(0), padded.stride(1) * channels, padded.stride(1)};
    for (size_t d = 0; d < rank(); ++d) {
      sizes.push_back(kernel[d]);
      strides.push_back(padded.stride(static_cast<int64_t>(d) + 2) * dilation[d]);
    }
    for (size_t d = 0; d < rank(); ++d) {
      sizes.push_back(output[d]);
      strides.push_back(padded.stride(static_cast<int64_t>(d) + 2) * stride[d]);
    }
    return padded.as_strided(sizes, strides);
  }

  at::Tensor WindowsOf(const at::Tensor& x) const {
    Sizes pads;
    for (size_t d = rank(); d-- > 0;) pads.insert(pads.end(), 2, padding[d]);
    const bool is_padded = Spatial(x) != PaddedInput();
    return Windows(is_padded ? at::constant_pad_nd(x, pads, 0).contiguous() : x.contiguous());
  }
  // [N, groups, C / groups * kernel, output].
  at::Tensor Columns(const at::Tensor& x) const {
    return WindowsOf(x).reshape(
        {x.size(0), groups, x.size(1) / groups * multiply_integers(kernel), multiply_integers(output)});
  }

  at::Tensor Weight(const at::Tensor& weight) const {  // [groups, M / groups, C / groups * kernel]
    return weight.reshape({groups, weight.size(0) / groups, weight.size(1) * multiply_integers(kernel)});
  }
  at::Tensor Rows(const at::Tensor& y) const {  // [N, groups, M / groups, output]
    return y.reshape({y.size(0), groups, y.size(1) / groups, multiply_integers(output)});
  }

  // Without a bias if that is not defined.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) const {
    if (KernelCall call("Conv"); call.Takes(0, x.scalar_type())) {
      at::Tensor y = Call(call, x, weight, bias).One();
      // The padding of a transposed convolution's output may have room for more windows than it had inputs.
      for (size_t d = 0; d < rank(); ++d) y = y.narrow(static_cast<int64_t>(d) + 2, 0, output[d]);
      return y.contiguous();
    }
    if (bias.defined()) return AddBias(Forward(x, weight), bias);
    Sizes sizes{x.size(0), weight.size(0)};
    sizes.insert(sizes.end(), output.begin(), output.end());
    return at::matmul(Weight(weight), Columns(x)).reshape(sizes);
  }

  static at::Tensor AddBias(at::Tensor y, const at::Tensor& bias) {
    Sizes along(static_cast<size_t>(y.dim()), 1);
    along[1] = bias.numel();
    return y.add_(bias.reshape(along));
  }

  // Plus a bias, if that is defined: then it is a transposed convolution.
  at::Tensor InputGradient(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& bias = {}) const {
    if (KernelCall call("ConvTranspose"); call.Takes(0, dy.scalar_type())) {
      Sizes more;  // inputs at the end that no window reaches
      for (size_t d = 0; d < rank(); ++d)
        more.push_back(input[d] - ((output[d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + 1));
      return Call(call, dy, weight, bias).Set("output_padding", std::move(more)).One();
    }
    if (bias.defined()) return AddBias(InputGradient(dy, weight), bias);
    const int64_t channels = weight.size(1) * groups;
    Sizes sizes{dy.size(0), channels};
    const Sizes padded = PaddedInput();
    sizes.insert(sizes.end(), padded.begin(), padded.end());
    at::Tensor gradient = at::zeros(sizes, dy.options());
    const at::Tensor windows = Windows(gradient);
    const at::Tensor columns = at::matmul(Weight(weight).transpose(1, 2), Rows(dy)).reshape(windows.sizes());
    AddWindows(windows, columns);
    for (size_t d = 0; d < rank(); ++d) gradient = gradient.narrow(static_cast<int64_t>(d) + 2, padding[d], input[d]);
    return gradient.contiguous();
  }

  at::Tensor WeightGradient(const at::Tensor& x, const at::Tensor& dy, at::IntArrayRef sizes) const {
    // The batch and the output's positions form one dimension: one matmul for each group.
    const at::Tensor rows = Rows(dy).permute({1, 2, 0, 3}).reshape({groups, dy.size(1) / groups, -1});
    const at::Tensor windows = WindowsOf(x);
    Sizes batch_inside{1};
    for (int64_t d = 2; d < windows.dim(); ++d) {
      if (d == 3 + static_cast<int64_t>(rank())) batch_inside.push_back(0);
      batch_inside.push_back(d);
    }
    // Copied along rows of the output, and transposed as the product reads it.
    const at::Tensor columns = windows.permute(batch_inside).reshape({groups, -1, rows.size(2)}).transpose(1, 2);
    return (groups == 1 ? at::mm(rows[0], columns[0]) : at::matmul(rows, columns)).reshape(sizes);
  }

 private:
  KernelCall& Call(KernelCall& call, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    Sizes pads = padding.vec();
    pads.insert(pads.end(), padding.begin(), padding.end());
    call.In(Dense(x)).In(Dense(weight));
    if (bias.defined()) call.In(Dense(bias));
    return call.Set("strides", stride.vec())
        .Set("pads", std::move(pads))
        .Set("dilations", dilation.vec())
        .Set("group", groups);
  }

  // Windows that do not overlap are written by one copy; else those of one position in the kernel do not, and the
  // positions are added in turn.
  void AddWindows(const at::Tensor& windows, const at::Tensor& columns) const {
    bool apart = true;
    for (size_t d = 0; d < rank(); ++d) apart &= stride[d] >= (kernel[d] - 1) * dilation[d] + 1;
    if (apart) {
      windows.copy_(columns);
      return;
    }
    for (int64_t place = 0; place < multiply_integers(kernel); ++place) {
      at::Tensor to = windows, from = columns;
      int64_t rest = place;
      for (size_t d = rank(); d-- > 0; rest /= kernel[d]) {
        to = to.select(static_cast<int64_t>(d) + 3, rest % kernel[d]);
        from = from.select(static_cast<int64_t>(d) + 3, rest % kernel[d]);
      }
      to.add_(from);
    }
  }
};

Convolution Describe(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  Convolution c{stride, padding, dilation, groups, Spatial(weight), Spatial(x), {}};
  for (size_t d = 0; d < c.rank(); ++d) {
    const int64_t reach = dilation[d] * (c.kernel[d] - 1) + 1;
    c.output.push_back(transposed ? (c.input[d] - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d]
                                  : (c.input[d] + 2 * padding[d] - reach) / stride[d] + 1);
    TORCH_CHECK(c.output[d] > 0,
                "convolution: expected an input at least as large as the kernel, got an output of size ", c.output[d],
                " in dimension ", d);
  }
  if (transposed) std::swap(c.input, c.output);
  return c;
}

at::Tensor Convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups) {
  const Convolution c = Describe(x, weight, stride, padding, dilation, transposed, output_padding, groups);
  const at::Tensor given = bias.value_or(at::Tensor());
  return transposed ? c.InputGradient(x, weight, given) : c.Forward(x, weight, given);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolveBackward(const at::Tensor& dy, const at::Tensor& x,
                                                                const at::Tensor& weight, at::IntArrayRef stride,
                                                                at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                bool transposed, at::IntArrayRef output_padding,
                                                                int64_t groups, std::array<bool, 3> wanted) {
  const Convolution c = Describe(x, weight, stride, padding, dilation, transposed, output_padding, groups);
  at::Tensor dx, dw, db;
  if (wanted[0]) dx = transposed ? c.Forward(dy, weight) : c.InputGradient(dy, weight);
  if (wanted[1]) dw = transposed ? c.WeightGradient(dy, x, weight.sizes()) : c.WeightGradient(x, dy, weight.sizes());
  if (wanted[2]) {
    Sizes all_but_channels{0};
    for (int64_t d = 2; d < dy.dim(); ++d) all_but_channels.push_back(d);
    db = dy.sum(all_but_channels);
  }
  return {dx, dw, db};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("convolution_overrideable", &Convolve);
  m.impl("convolution_backward_overrideable", &ConvolveBackward);
}

}  // namespace
}  // namespace npu::aten
