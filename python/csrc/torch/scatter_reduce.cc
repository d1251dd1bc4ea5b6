// Elements reduced into the positions that an index gives.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_reduce_meta.h>
#include <ATen/ops/index_reduce_ops.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/scatter_reduce_meta.h>
#include <ATen/ops/scatter_reduce_ops.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/scatter.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor Reduced(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                   const char* reduction) {
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  Scatter(self, dim, index, source, reduction, out);
  return out;
}

// The neutral element of a reduction.
c10::Scalar Neutral(c10::string_view reduce, at::ScalarType dtype) {
  if (reduce == "sum" || reduce == "mean") return 0;
  if (reduce == "prod") return 1;
  c10::Scalar extreme;
  DispatchNumbers(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      extreme =
          static_cast<int64_t>(reduce == "amax" ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max());
    } else {
      const double infinity = std::numeric_limits<double>::infinity();
      extreme = reduce == "amax" ? -infinity : infinity;
    }
  });
  return extreme;
}

at::Tensor& ScatterReduceOut(const at::Tensor& self, int64_t given_dim, const at::Tensor& index,
                             const at::Tensor& given_source, c10::string_view reduce, bool include_self,
                             at::Tensor& out) {
  Infer<at::meta::structured_scatter_reduce_two>(out, self, given_dim, index, given_source, reduce, include_self);
  if (!IsNumber(self.scalar_type()) || index.scalar_type() != at::kLong)
    return FallBack<at::_ops::scatter_reduce_two_out>(self, given_dim, index, given_source, reduce, include_self, out);
  if (index.numel() == 0) return out.is_same(self) ? out : out.copy_(self);
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  const at::Tensor source = Wide(given_source);
  at::Tensor start = Wide(self);
  if (!include_self) start = start.scatter(dim, index, Neutral(reduce, start.scalar_type()));
  if (reduce != "mean") {
    const char* reduction = reduce == "sum" ? "add" : reduce == "prod" ? "mul" : reduce == "amax" ? "max" : "min";
    return out.copy_(Reduced(start, dim, index, source, reduction));
  }
  const at::Tensor ones = at::zeros_like(source, at::kLong).fill_(1);
  const at::Tensor own = at::zeros_like(self, at::kLong).fill_(include_self ? 1 : 0);
  const at::Tensor count = Reduced(own, dim, index, ones, "add").clamp_min(1).to(start.scalar_type());
  const at::Tensor sum = Reduced(start, dim, index, source, "add");
  return out.copy_(sum.is_floating_point() ? sum / count : sum.div(count, "floor"));
}

at::Tensor& ScatterWithOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                           c10::string_view reduce, at::Tensor& out) {
  Infer<at::meta::structured_scatter_reduce>(out, self, dim, index, source, reduce);
  if (!IsNumber(self.scalar_type()))
    return FallBack<at::_ops::scatter_reduce_out>(self, dim, index, source, reduce, out);
  if (index.numel() == 0) return out.is_same(self) ? out : out.copy_(self);
  return out.copy_(Reduced(Wide(self), dim, index, Wide(source), reduce == "add" ? "add" : "mul"));
}
at::Tensor& ScatterValueWithOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const c10::Scalar& value,
                                c10::string_view reduce, at::Tensor& out) {
  Infer<at::meta::structured_scatter_value_reduce>(out, self, dim, index, value, reduce);
  const at::Tensor source = ScalarTensor(value, self.scalar_type(), self).expand(index.sizes());
  return ScatterWithOut(self, dim, index, source, reduce, out);
}

// Whole slices along one dimension, each to the position that the index says.
at::Tensor& IndexReduceOut(const at::Tensor& self, int64_t given_dim, const at::Tensor& index, const at::Tensor& source,
                           c10::string_view reduce, bool include_self, at::Tensor& out) {
  Infer<at::meta::structured_index_reduce>(out, self, given_dim, index, source, reduce, include_self);
  if (!IsNumber(self.scalar_type()) || self.dim() == 0)
    return FallBack<at::_ops::index_reduce_out>(self, given_dim, index, source, reduce, include_self, out);
  const int64_t dim = at::maybe_wrap_dim(given_dim, self.dim());
  std::vector<int64_t> along(static_cast<size_t>(self.dim()), 1);
  along[static_cast<size_t>(dim)] = index.numel();
  const at::Tensor each = index.to(at::kLong).reshape(along).expand(source.sizes());
  return out.copy_(self.scatter_reduce(dim, each, source, reduce, include_self));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("scatter_reduce.two_out", &ScatterReduceOut);
  m.impl("scatter.reduce_out", &ScatterWithOut);
  m.impl("scatter.value_reduce_out", &ScatterValueWithOut);
  m.impl("index_reduce.out", &IndexReduceOut);
}

}  // namespace
}  // namespace npu::aten
