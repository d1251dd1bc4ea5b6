// Distances between the rows of two matrices, in any norm, and their gradient.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

bool IsCdistType(at::ScalarType dtype) { return KernelCall("PairwiseDistance", "npu.aten").Takes(0, dtype); }

// The batches of both inputs, broadcast to one shape: [count, rows, width] each, dense.
struct RowPairs {
  std::vector<int64_t> batch;
  at::Tensor first, second;
  int64_t count = 1, rows = 0, others = 0, width = 0;

  RowPairs(const at::Tensor& x1, const at::Tensor& x2) {
    TORCH_CHECK(x1.dim() >= 2 && x2.dim() >= 2 && x1.size(-1) == x2.size(-1),
                "cdist expected matrices of one width, got ", x1.sizes(), " and ", x2.sizes());
    TORCH_CHECK(IsCdistType(x1.scalar_type()), "cdist only supports floating-point dtypes, X1 got: ", x1.scalar_type());
    TORCH_CHECK(IsCdistType(x2.scalar_type()), "cdist only supports floating-point dtypes, X2 got: ", x2.scalar_type());
    TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "expected scalar type ", x1.scalar_type(), " but found ",
                x2.scalar_type());
    batch = at::infer_size(x1.sizes().slice(0, static_cast<size_t>(x1.dim() - 2)),
                           x2.sizes().slice(0, static_cast<size_t>(x2.dim() - 2)));
    for (const int64_t size : batch) count *= size;
    rows = x1.size(-2), others = x2.size(-2), width = x1.size(-1);
    first = Dense(x1.expand(Shape(rows, width)));
    second = Dense(x2.expand(Shape(others, width)));
  }
  KernelCall Call(const char* type, double p) const {
    KernelCall call(type, "npu.aten");
    call.In(first, {count, rows, width}).In(second, {count, others, width}).Set("p", p);
    return call;
  }
  std::vector<int64_t> Shape(int64_t height, int64_t columns) const {
    std::vector<int64_t> shape = batch;
    shape.insert(shape.end(), {height, columns});
    return shape;
  }
};

at::Tensor Cdist(const at::Tensor& x1, const at::Tensor& x2, double p, std::optional<int64_t> mode) {
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  TORCH_CHECK(!mode || (*mode >= 0 && *mode <= 2), "possible modes: 0, 1, 2, but was: ", mode.value_or(0));
  const RowPairs pairs(x1, x2);
  at::Tensor out = Empty(pairs.Shape(pairs.rows, pairs.others), x1.scalar_type(), x1);
  pairs.Call("PairwiseDistance", p).Into(out);
  return out;
}

// The gradient with respect to x1, of the shape to which its batches are broadcast.
at::Tensor CdistBackward(const at::Tensor& given_grad, const at::Tensor& x1, const at::Tensor& x2, double p,
                         const at::Tensor& given_distances) {
  const RowPairs pairs(x1, x2);
  at::Tensor out = Empty(pairs.Shape(pairs.rows, pairs.width), x1.scalar_type(), x1);
  const std::vector<int64_t> shape = pairs.Shape(pairs.rows, pairs.others);
  const auto dense = [&](const at::Tensor& t) { return Dense(t.expand(shape), x1.scalar_type()); };
  const std::vector<int64_t> flat = {pairs.count, pairs.rows, pairs.others};
  pairs.Call("PairwiseDistanceGrad", p).In(dense(given_grad), flat).In(dense(given_distances), flat).Into(out);
  return out;
}

// The distances between every two rows, those of the first row first.
at::Tensor Pdist(const at::Tensor& self, double p) {
  const int64_t rows = self.size(0);
  const at::Tensor pairs = at::triu_indices(rows, rows, 1, self.options().dtype(at::kLong));
  return Cdist(self, self, p, std::nullopt).index({pairs[0], pairs[1]});
}
at::Tensor PdistBackward(const at::Tensor& grad, const at::Tensor& self, double p, const at::Tensor& distances) {
  const int64_t rows = self.size(0);
  const at::Tensor pairs = at::triu_indices(rows, rows, 1, self.options().dtype(at::kLong));
  // Each pair counts for both of its rows.
  const auto full = [&](const at::Tensor& of_pairs) {
    const at::Tensor upper = at::zeros({rows, rows}, self.options()).index_put_({pairs[0], pairs[1]}, of_pairs);
    return upper + upper.t();
  };
  return CdistBackward(full(grad), self, self, p, full(distances));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_cdist_forward", &Cdist);
  m.impl("_cdist_backward", &CdistBackward);
  m.impl("_pdist_forward", &Pdist);
  m.impl("_pdist_backward", &PdistBackward);
}

}  // namespace
}  // namespace npu::aten
