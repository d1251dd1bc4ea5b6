// Distances between the rows of two matrices, in any norm, and their gradient. Always by differences: the matrix
// product that torch takes for many rows loses the small distances to rounding.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// Batches of both, brought to one shape: [count, rows, width] each, dense.
struct RowPairs {
  std::vector<int64_t> batch;
  at::Tensor first, second;
  int64_t count = 1, rows = 0, others = 0, width = 0;

  RowPairs(const at::Tensor& x1, const at::Tensor& x2) {
    TORCH_CHECK(x1.dim() >= 2 && x2.dim() >= 2 && x1.size(-1) == x2.size(-1),
                "cdist expected matrices of one width, got ", x1.sizes(), " and ", x2.sizes());
    TORCH_CHECK(IsRealFloat(x1.scalar_type()), "cdist only supports floating-point dtypes, X1 got: ", x1.scalar_type());
    TORCH_CHECK(IsRealFloat(x2.scalar_type()), "cdist only supports floating-point dtypes, X2 got: ", x2.scalar_type());
    TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "expected scalar type ", x1.scalar_type(), " but found ",
                x2.scalar_type());
    batch = at::infer_size(x1.sizes().slice(0, static_cast<size_t>(x1.dim() - 2)),
                           x2.sizes().slice(0, static_cast<size_t>(x2.dim() - 2)));
    for (const int64_t size : batch) count *= size;
    rows = x1.size(-2), others = x2.size(-2), width = x1.size(-1);
    first = Dense(x1.expand(Shape(rows, width)));
    second = Dense(x2.expand(Shape(others, width)));
  }
  std::vector<int64_t> Shape(int64_t height, int64_t columns) const {
    std::vector<int64_t> shape = batch;
    shape.insert(shape.end(), {height, columns});
    return shape;
  }
};

// f(p-norm's own way to add up |differences|): sum starts at 0, next(sum, |d|), root(sum).
template <class R, class F>
void DispatchNorm(double p, F f) {
  const R power = static_cast<R>(p);
  if (p == 0) {
    f([](R sum, R d) { return sum + (d != 0 ? R{1} : R{0}); }, [](R sum) { return sum; });
  } else if (p == 1) {
    f([](R sum, R d) { return sum + d; }, [](R sum) { return sum; });
  } else if (p == 2) {
    f([](R sum, R d) { return sum + d * d; }, [](R sum) { return std::sqrt(sum); });
  } else if (std::isinf(p)) {
    f([](R sum, R d) { return d > sum || d != d ? d : sum; }, [](R sum) { return sum; });
  } else {
    f([power](R sum, R d) { return sum + std::pow(d, power); }, [power](R sum) { return std::pow(sum, 1 / power); });
  }
}

at::Tensor Cdist(const at::Tensor& x1, const at::Tensor& x2, double p, std::optional<int64_t> mode) {
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  TORCH_CHECK(!mode || (*mode >= 0 && *mode <= 2), "possible modes: 0, 1, 2, but was: ", mode.value_or(0));
  const RowPairs pairs(x1, x2);
  at::Tensor out = Empty(pairs.Shape(pairs.rows, pairs.others), x1.scalar_type(), x1);
  if (out.numel() == 0) return out;
  DispatchFloats(x1.scalar_type(), [&]<class T>(T) {
    DispatchNorm<Real<T>>(p, [&](auto next, auto root) {
      LaunchMap<T>("cdist", out,
                   [next, root, rows = pairs.rows, others = pairs.others, width = pairs.width,
                    a = static_cast<const T*>(pairs.first.const_data_ptr()),
                    b = static_cast<const T*>(pairs.second.const_data_ptr())](int64_t i) {
                     const int64_t row = i / others;
                     const T* x = a + row * width;
                     const T* y = b + (row / rows * others + i % others) * width;
                     Real<T> sum = 0;
                     for (int64_t k = 0; k < width; ++k)
                       sum = next(sum, std::fabs(static_cast<Real<T>>(x[k]) - static_cast<Real<T>>(y[k])));
                     return static_cast<T>(root(sum));
                   });
    });
  });
  return out;
}

// The slope of a distance by one difference d of those it is made of. In the infinite norm it is the sign of the
// differences that are the distance, as that was rounded to T.
template <class T>
Real<T> Slope(Real<T> d, T rounded_distance, Real<T> p) {
  using R = Real<T>;
  const R distance = static_cast<R>(rounded_distance), size = std::fabs(d);
  const R sign = static_cast<R>((d > 0) - (d < 0));
  if (p == 0 || distance == 0 || d == 0) return 0;
  if (p == 1) return sign;
  if (std::isinf(p)) return static_cast<T>(size) == rounded_distance ? sign : R{0};
  if (p == 2) return d / distance;
  return sign * std::pow(size / distance, p - 1);
}

// The gradient by x1, of the shape that its batches are spread to.
at::Tensor CdistBackward(const at::Tensor& given_grad, const at::Tensor& x1, const at::Tensor& x2, double p,
                         const at::Tensor& given_distances) {
  const RowPairs pairs(x1, x2);
  at::Tensor out = Empty(pairs.Shape(pairs.rows, pairs.width), x1.scalar_type(), x1);
  if (out.numel() == 0) return out;
  const std::vector<int64_t> shape = pairs.Shape(pairs.rows, pairs.others);
  const at::Tensor grad = Dense(given_grad.expand(shape), x1.scalar_type());
  const at::Tensor distances = Dense(given_distances.expand(shape), x1.scalar_type());
  DispatchFloats(x1.scalar_type(), [&]<class T>(T) {
    LaunchMap<T>(
        "cdist_backward", out,
        [power = static_cast<Real<T>>(p), rows = pairs.rows, others = pairs.others, width = pairs.width,
         a = static_cast<const T*>(pairs.first.const_data_ptr()),
         b = static_cast<const T*>(pairs.second.const_data_ptr()), g = static_cast<const T*>(grad.const_data_ptr()),
         d = static_cast<const T*>(distances.const_data_ptr())](int64_t i) {
          const int64_t row = i / width, k = i % width;
          const T* y = b + row / rows * others * width + k;
          Real<T> sum = 0;
          for (int64_t j = 0; j < others; ++j) {
            const auto difference = static_cast<Real<T>>(a[i]) - static_cast<Real<T>>(y[j * width]);
            sum += static_cast<Real<T>>(g[row * others + j]) * Slope<T>(difference, d[row * others + j], power);
          }
          return static_cast<T>(sum);
        });
  });
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_cdist_forward", &Cdist);
  m.impl("_cdist_backward", &CdistBackward);
}

}  // namespace
}  // namespace npu::aten
