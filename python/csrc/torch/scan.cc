// Running products and extremes along one dimension.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_cummax_helper_ops.h>
#include <ATen/ops/_cummin_helper_ops.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumprod_ops.h>
#include <torch/library.h>

#include <cmath>
#include <type_traits>

#include "python/csrc/torch/axis.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// f(the position of the first element) for each line of a dense tensor along an axis, in parallel; the others of a line
// follow in steps of axis.inner.
template <class F>
void ForEachLine(const Axis& axis, F f) {
  ParallelFor(axis.outer * axis.inner, 4096 / (axis.size + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) f(line / axis.inner * axis.inner * axis.size + line % axis.inner);
  });
}

at::Tensor& CumprodOut(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  Infer<at::meta::structured_cumprod>(out, self, dim, dtype);
  if (out.numel() == 0) return out;
  if (!IsNumber(out.scalar_type())) return FallBack<at::_ops::cumprod_out>(self, dim, dtype, out);
  const at::Tensor x = Dense(self, out.scalar_type()), y = DenseTarget(out, out.scalar_type());
  DispatchNumbers(out.scalar_type(), [&]<class T>(T) {
    StreamOf(out).Launch(
        "cumprod", [axis = Axis(x, at::maybe_wrap_dim(dim, self.dim())),
                    from = static_cast<const T*>(x.const_data_ptr()), to = static_cast<T*>(y.mutable_data_ptr())] {
          ForEachLine(axis, [&](int64_t i) {
            std::conditional_t<std::is_integral_v<T>, T, double> product = 1;
            for (int64_t k = 0; k < axis.size; ++k, i += axis.inner) {
              product = static_cast<decltype(product)>(product * static_cast<decltype(product)>(from[i]));
              to[i] = static_cast<T>(product);
            }
          });
        });
  });
  return Deliver(y, out);
}

// Each element's extreme so far with its position, the last of equals; what is no number stays.
template <class Op, bool maximum>
void RunningExtremes(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  const bool truth = self.scalar_type() == at::kBool;
  const at::ScalarType dtype = truth ? at::kByte : self.scalar_type();
  if (!IsNumber(dtype)) return FallBack<Op>(self, values, indices, dim);
  if (self.numel() == 0) return;
  const at::Tensor x = Dense(self, dtype), y = DenseTarget(values, dtype), at = DenseTarget(indices, at::kLong);
  DispatchNumbers(dtype, [&]<class T>(T) {
    StreamOf(self).Launch(
        maximum ? "cummax" : "cummin",
        [axis = Axis(x, at::maybe_wrap_dim(dim, self.dim())), from = static_cast<const T*>(x.const_data_ptr()),
         to = static_cast<T*>(y.mutable_data_ptr()), places = static_cast<int64_t*>(at.mutable_data_ptr())] {
          ForEachLine(axis, [&](int64_t i) {
            auto best = static_cast<Real<T>>(from[i]);
            int64_t place = 0;
            for (int64_t k = 0; k < axis.size; ++k, i += axis.inner) {
              const auto e = static_cast<Real<T>>(from[i]);
              if (e != e || (best == best && (maximum ? e >= best : e <= best))) {
                best = e;
                place = k;
              }
              to[i] = static_cast<T>(best);
              places[i] = place;
            }
          });
        });
  });
  Deliver(y, values);
  Deliver(at, indices);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("cumprod.out", &CumprodOut);
  m.impl("_cummax_helper", &RunningExtremes<at::_ops::_cummax_helper, true>);
  m.impl("_cummin_helper", &RunningExtremes<at::_ops::_cummin_helper, false>);
}

}  // namespace
}  // namespace npu::aten
