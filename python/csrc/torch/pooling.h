// What the pools over two and over three dimensions share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "python/csrc/torch/kernel_call.h"

namespace npu::aten {

// One value for each of the spatial dimensions, of which a single one stands for all.
std::vector<int64_t> ForEach(size_t dimensions, at::IntArrayRef values);
// The sizes with a batch of one in front if the tensor has none.
std::vector<int64_t> Batched(size_t dimensions, const at::Tensor& images);
// The attributes of windows that slide; without a stride they lie side by side.
KernelCall& Slide(size_t dimensions, KernelCall& call, at::IntArrayRef kernel, at::IntArrayRef stride,
                  at::IntArrayRef padding, bool ceil_mode);
// The same for averages, of as many elements as a window has unless a divisor is given.
KernelCall& SlideAverage(size_t dimensions, KernelCall& call, at::IntArrayRef kernel, at::IntArrayRef stride,
                         at::IntArrayRef padding, bool ceil_mode, bool count_padding, std::optional<int64_t> divisor);
// Adds each gradient at the position of its max, of which indices count within an image.
at::Tensor& ToPlaces(size_t dimensions, const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices,
                     at::Tensor& out);

}  // namespace npu::aten
