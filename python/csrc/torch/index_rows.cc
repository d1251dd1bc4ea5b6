// Rows of a tensor, along one dimension, that are added to, replaced or filled. An index out of range is a device error
// at the next synchronisation.
#include <ATen/Dispatch_v2.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/index_copy_ops.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/bits.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor DenseIndex(const char* op, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, op,
                    "(): Expected dtype int32/int64 for index, got ", index.scalar_type());
  TORCH_CHECK_INDEX(index.dim() <= 1, op, "(): Index is supposed to be a vector, got ", index.sizes());
  return Dense(index);
}

// A scalar has one row of one element.
std::vector<int64_t> RowShape(const at::Tensor& t) { return t.dim() == 0 ? std::vector<int64_t>{1} : t.sizes().vec(); }

// The call of a kernel that changes rows of `self`: add the inputs after self and index, then Deliver().
struct RowsCall {
  KernelCall call;
  at::Tensor self;  // dense
  bool copied;      // `self` is a copy that may be written
  std::vector<int64_t> source;

  RowsCall(const char* type, const at::Tensor& given, int64_t dim, const at::Tensor& index)
      : call(type, "npu.aten"), self(Dense(given)), copied(!self.is_same(given)), source(RowShape(given)) {
    dim = at::maybe_wrap_dim(dim, given.dim());
    source[static_cast<size_t>(dim)] = index.numel();
    call.In(self, RowShape(given)).In(index).Set("axis", dim);
  }
  // Adds the rows of the source; a vector or scalar may hold more than there are indices.
  void Source(const char* op, const at::Tensor& rows) {
    TORCH_CHECK(rows.numel() >= c10::multiply_integers(source), op, "(): expected a source of shape ", source, ", got ",
                rows.sizes());
    call.In(rows, source);
  }
  at::Tensor& Deliver(at::Tensor& out) {
    const at::Tensor& target = copied ? self : out;
    call.Into(target);
    return target.is_same(out) ? out : out.copy_(target);
  }
};

// Passes alpha in the type that the kernel expects: int64 or double.
void PassAlpha(KernelCall& call, const c10::Scalar& alpha, at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    call.HostScalar(alpha.to<double>());
  } else {
    AT_DISPATCH_V2(dtype, "index_add", AT_WRAP([&] { call.HostScalar(static_cast<int64_t>(alpha.to<scalar_t>())); }),
                   AT_EXPAND(AT_INTEGRAL_TYPES_V2));
  }
}

at::Tensor& IndexAddOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                        const c10::Scalar& alpha, at::Tensor& out) {
  Infer<at::meta::structured_index_add>(out, self, dim, index, source, alpha);
  if (self.is_complex() && self.dim() > 0 && !alpha.isComplex()) {
    // Both parts of each number move by its index.
    at::view_as_real(out).copy_(
        at::view_as_real(self).index_add(at::maybe_wrap_dim(dim, self.dim()), index, at::view_as_real(source), alpha));
    return out;
  }
  if (!KernelCall("IndexAdd", "npu.aten").Takes(0, self.scalar_type()))
    return FallBack<at::_ops::index_add_out>(self, dim, index, source, alpha, out);
  const at::Tensor places = DenseIndex("index_add", index);
  if (out.numel() == 0) return out;
  RowsCall rows("IndexAdd", self, dim, places);
  rows.Source("index_add", Dense(source));
  PassAlpha(rows.call, alpha, self.scalar_type());
  return rows.Deliver(out);
}

at::Tensor& IndexCopyOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                         at::Tensor& out) {
  Infer<at::meta::structured_index_copy>(out, self, dim, index, source);
  const at::Tensor places = DenseIndex("index_copy", index);
  if (out.numel() == 0) return out;
  at::Tensor bits = Bits(out);
  RowsCall rows("IndexCopy", Bits(self), at::maybe_wrap_dim(dim, self.dim()), places);
  rows.Source("index_copy", Bits(Dense(source)));
  rows.Deliver(bits);
  return out;
}

at::Tensor& IndexFill(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  TORCH_CHECK(self.is_complex() || !value.is_complex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  const at::Tensor places = DenseIndex("index_fill_", index);
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.numel() == 0) return self;
  at::Tensor bits = Bits(self);
  const at::Tensor element = Bits(Dense(value.to(self.scalar_type())));
  if (bits.dim() > self.dim()) {
    for (const int64_t half : {0, 1}) {
      at::Tensor halves = bits.select(-1, half);
      IndexFill(halves, dim, places, element.select(-1, half));
    }
    return self;
  }
  RowsCall rows("IndexFill", bits, dim, places);
  rows.call.In(element);
  rows.Deliver(bits);
  return self;
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
