// A dense tensor as [outer, size, inner], seen from one of its dimensions; a scalar has one of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace npu::aten {

struct Axis {
  int64_t outer = 1, size = 1, inner = 1;

  Axis(const at::Tensor& t, int64_t dim) {
    if (t.dim() == 0) return;
    size = t.size(dim);
    for (int64_t d = 0; d < t.dim(); ++d) {
      if (d < dim) outer *= t.size(d);
      if (d > dim) inner *= t.size(d);
    }
  }
};

}  // namespace npu::aten
