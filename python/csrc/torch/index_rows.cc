// Rows of a tensor, along one dimension, that are added to, replaced or filled. An index out of range is a device error
// at the next synchronisation.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/index_copy_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "ep/runtime/error.h"
#include "python/csrc/torch/axis.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// Calls f(row, k, begin, end) for each index in turn, its row of each outer part, and the part [begin, end) of the
// row's elements: parallel in what does not depend on the order of the indices. Only where it `wraps` a negative index
// counts from the end, as torch has it.
template <bool wraps = false, class Index, class F>
void ForEachIndexedRow(const char* op, const Axis& rows, const Index* indices, int64_t count, F f) {
  constexpr int64_t kColumns = 1024;
  const int64_t parts = (rows.inner + kColumns - 1) / kColumns;
  ParallelFor(rows.outer * parts, std::max<int64_t>(1, 4096 / (count + 1)), [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t outer = part / parts, begin = part % parts * kColumns;
      const int64_t end = std::min(rows.inner, begin + kColumns);
      for (int64_t k = 0; k < count; ++k) {
        const auto index = static_cast<int64_t>(indices[k]);
        NPU_CHECK(index >= (wraps ? -rows.size : 0) && index < rows.size, "[", op, "] index ", index,
                  " is out of bounds for size ", rows.size);
        const int64_t row = outer * rows.size + (index < 0 ? index + rows.size : index);
        f(row, outer * count + k, begin, end);
      }
    }
  });
}

template <class F>
void DispatchIndex(const at::Tensor& index, F f) {
  index.scalar_type() == at::kInt ? f(int32_t{}) : f(int64_t{});
}
at::Tensor DenseIndex(const char* op, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, op,
                    "(): Expected dtype int32/int64 for index, got ", index.scalar_type());
  TORCH_CHECK_INDEX(index.dim() <= 1, op, "(): Index is supposed to be a vector, got ", index.sizes());
  return Dense(index);
}

// `out`, or memory in its place, with the content of `self`.
at::Tensor StartFrom(const at::Tensor& self, const at::Tensor& out) {
  at::Tensor target = DenseTarget(out, out.scalar_type());
  if (!target.is_same(self)) target.copy_(self);
  return target;
}

at::Tensor& IndexAddOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                        const c10::Scalar& alpha, at::Tensor& out) {
  Infer<at::meta::structured_index_add>(out, self, dim, index, source, alpha);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::index_add_out>(self, dim, index, source, alpha, out);
  const at::Tensor places = DenseIndex("index_add", index), added = Dense(source), target = StartFrom(self, out);
  const Axis rows(target, at::maybe_wrap_dim(dim, self.dim()));
  if (target.numel() > 0 && places.numel() > 0) {
    DispatchNumbers(self.scalar_type(), [&]<class T>(T) {
      DispatchIndex(places, [&]<class I>(I) {
        StreamOf(target).Launch("index_add", [rows, indices = static_cast<const I*>(places.const_data_ptr()),
                                              count = places.numel(), factor = static_cast<Real<T>>(alpha.to<T>()),
                                              from = static_cast<const T*>(added.const_data_ptr()),
                                              to = static_cast<T*>(target.mutable_data_ptr())] {
          ForEachIndexedRow("index_add", rows, indices, count, [&](int64_t row, int64_t k, int64_t b, int64_t e) {
            T* sum = to + row * rows.inner;
            const T* term = from + k * rows.inner;
            for (int64_t i = b; i < e; ++i)
              sum[i] = static_cast<T>(static_cast<Real<T>>(sum[i]) + factor * static_cast<Real<T>>(term[i]));
          });
        });
      });
    });
  }
  return Deliver(target, out);
}

// Rows as bytes; the last of equal indices stays.
at::Tensor& IndexCopyOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                         at::Tensor& out) {
  Infer<at::meta::structured_index_copy>(out, self, dim, index, source);
  const at::Tensor places = DenseIndex("index_copy", index), given = Dense(source), target = StartFrom(self, out);
  Axis rows(target, at::maybe_wrap_dim(dim, self.dim()));
  rows.inner *= static_cast<int64_t>(self.element_size());
  if (target.numel() > 0 && places.numel() > 0) {
    DispatchIndex(places, [&]<class I>(I) {
      StreamOf(target).Launch(
          "index_copy", [rows, indices = static_cast<const I*>(places.const_data_ptr()), count = places.numel(),
                         from = static_cast<const char*>(given.const_data_ptr()),
                         to = static_cast<char*>(target.mutable_data_ptr())] {
            ForEachIndexedRow("index_copy", rows, indices, count, [&](int64_t row, int64_t k, int64_t b, int64_t e) {
              std::memcpy(to + row * rows.inner + b, from + k * rows.inner + b, static_cast<size_t>(e - b));
            });
          });
    });
  }
  return Deliver(target, out);
}

at::Tensor& IndexFill(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  TORCH_CHECK(self.is_complex() || !value.is_complex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  const at::Tensor places = DenseIndex("index_fill_", index);
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor element = Dense(value.to(self.scalar_type())), target = StartFrom(self, self);
  const Axis rows(target, dim);
  if (target.numel() > 0 && places.numel() > 0) {
    DispatchIndex(places, [&]<class I>(I) {
      StreamOf(target).Launch(
          "index_fill", [rows, indices = static_cast<const I*>(places.const_data_ptr()), count = places.numel(),
                         from = static_cast<const char*>(element.const_data_ptr()), size = self.element_size(),
                         to = static_cast<char*>(target.mutable_data_ptr())] {
            ForEachIndexedRow<true>(
                "index_fill", rows, indices, count, [&](int64_t row, int64_t, int64_t b, int64_t e) {
                  for (int64_t i = b; i < e; ++i)
                    std::memcpy(to + (row * rows.inner + i) * static_cast<int64_t>(size), from, size);
                });
          });
    });
  }
  return Deliver(target, self);
}
at::Tensor& IndexFillScalar(at::Tensor& self, int64_t dim, const at::Tensor& index, const c10::Scalar& value) {
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  return IndexFill(self, dim, index, ScalarTensor(value, self.scalar_type(), self));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("index_add.out", &IndexAddOut);
  m.impl("index_copy.out", &IndexCopyOut);
  m.impl("index_fill_.int_Tensor", &IndexFill);
  m.impl("index_fill_.int_Scalar", &IndexFillScalar);
}

}  // namespace
}  // namespace npu::aten
