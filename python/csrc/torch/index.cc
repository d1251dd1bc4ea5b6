// Operators that gather and scatter elements. The kernels check every index when they run; an index out of range is a
// device error at the next synchronisation.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/atleast_1d.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/topk_meta.h>
#include <ATen/ops/tril_meta.h>
#include <ATen/ops/triu_meta.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <tuple>
#include <vector>

#include "python/csrc/torch/bits.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/scatter.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

bool KernelsKnow(const at::Tensor& t) { return ToDType(t.scalar_type()) != DType::kUndefined; }

at::Tensor Indices(const at::Tensor& index) {
  return Dense(index, index.scalar_type() == at::kInt ? at::kInt : at::kLong);
}

at::Tensor& IndexSelectOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  TORCH_CHECK(index.dim() <= 1, "index_select(): Index is supposed to be a vector, but got dim: ", index.dim());
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                    "index_select(): Expected dtype int32 or int64 for index, got ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "index_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  if (self.dim() == 0) {
    TORCH_CHECK_INDEX(index.numel() == 1, "index_select(): expected one index of a scalar, got ", index.numel());
    at::native::resize_output(out, {});
    return out.copy_(self.reshape({1}).index_select(0, index.reshape({1})).squeeze(0));
  }
  dim = at::maybe_wrap_dim(dim, self.dim());
  std::vector<int64_t> shape = self.sizes().vec();
  shape[static_cast<size_t>(dim)] = index.numel();
  at::native::resize_output(out, shape);
  if (out.numel() > 0)
    KernelCall("Gather").In(Dense(Bits(self))).In(Indices(index), {index.numel()}).Set("axis", dim).Into(Bits(out));
  return out;
}
at::Tensor IndexSelect(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  at::Tensor out = Empty({0}, self.scalar_type(), self);
  return IndexSelectOut(self, dim, index, out);
}

at::Tensor& GatherOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool sparse_grad, at::Tensor& out) {
  Infer<at::meta::structured_gather>(out, self, dim, index, sparse_grad);
  if (out.numel() == 0) return out;
  if (MovesAsBits(self)) {
    at::Tensor bits = Bits(out);
    GatherOut(Bits(self), dim, index, sparse_grad, bits);
    return out;
  }
  if (!KernelsKnow(self)) return FallBack<at::_ops::gather_out>(self, dim, index, sparse_grad, out);
  KernelCall("GatherElements")
      .In(Dense(at::atleast_1d(self)))  // the kernels need at least one dimension
      .In(Indices(at::atleast_1d(index)))
      .Set("axis", at::maybe_wrap_dim(dim, self.dim()))
      .Into(out);
  return out;
}

}  // namespace

void Scatter(const at::Tensor& self, int64_t dim, const at::Tensor& given_index, at::Tensor source,
             const char* reduction, at::Tensor& out) {
  if (given_index.numel() == 0) {
    if (!out.is_same(self)) out.copy_(self);
    return;
  }
  const at::Tensor index = at::atleast_1d(given_index);
  source = at::atleast_1d(source);
  for (int64_t d = 0; d < index.dim(); ++d) source = source.narrow(d, 0, index.size(d));
  KernelCall("ScatterElements")
      .In(Dense(at::atleast_1d(self)))
      .In(Indices(index))
      .In(Dense(source))
      .Set("axis", at::maybe_wrap_dim(dim, self.dim()))
      .Set("reduction", std::string(reduction))
      .Into(out);
}

namespace {

at::Tensor& ScatterSourceOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                             at::Tensor& out) {
  Infer<at::meta::structured_scatter_src>(out, self, dim, index, source);
  if (MovesAsBits(self)) {
    at::Tensor bits = Bits(out);
    ScatterSourceOut(Bits(self), dim, index, Bits(source), bits);
    return out;
  }
  if (!KernelsKnow(self)) return FallBack<at::_ops::scatter_src_out>(self, dim, index, source, out);
  Scatter(self, dim, index, source, "none", out);
  return out;
}
at::Tensor& ScatterValueOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const c10::Scalar& value,
                            at::Tensor& out) {
  Infer<at::meta::structured_scatter_value>(out, self, dim, index, value);
  if (!KernelsKnow(self)) return FallBack<at::_ops::scatter_value_out>(self, dim, index, value, out);
  Scatter(self, dim, index, ScalarTensor(value, self.scalar_type(), self).expand(index.sizes()), "none", out);
  return out;
}
std::vector<int64_t> AppendedTwo(const at::Tensor& t) {
  std::vector<int64_t> shape = t.sizes().vec();
  shape.push_back(2);
  return shape;
}
at::Tensor& ScatterAddOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                          at::Tensor& out) {
  Infer<at::meta::structured_scatter_add>(out, self, dim, index, source);
  if (self.is_complex() && self.dim() > 0) {
    // Both parts of each number move by its index.
    const at::Tensor each = index.unsqueeze(-1).expand(AppendedTwo(index));
    at::view_as_real(out).copy_(
        at::view_as_real(self).scatter_add(at::maybe_wrap_dim(dim, self.dim()), each, at::view_as_real(source)));
    return out;
  }
  if (!KernelsKnow(self) || self.scalar_type() == at::kBool)
    return FallBack<at::_ops::scatter_add_out>(self, dim, index, source, out);
  Scatter(self, dim, index, source, "add", out);
  return out;
}

// The positions of the true elements, row by row. Their number determines the result's shape, so the host waits for it.
at::Tensor Nonzero(const at::Tensor& self) {
  const at::Tensor truth = Dense(self, at::kBool);
  const auto count = KernelCall("CountTrue", "npu.aten").In(truth).One().item<int64_t>();
  return KernelCall("TruePositions", "npu.aten").In(truth).HostScalar(count).One();
}

void CheckMask(const at::Tensor& mask, const at::Tensor& masked, int64_t dim) {
  for (int64_t d = 0; d < mask.dim(); ++d)
    TORCH_CHECK_INDEX(dim + d < masked.dim() && mask.size(d) == masked.size(dim + d), "The shape of the mask ",
                      mask.sizes(), " at index ", d, " does not match the shape of the indexed tensor ", masked.sizes(),
                      " at index ", dim + d);
}

// The indices of an advanced-indexing call in one form: the indexed dimensions come first, each with an int64 tensor,
// all of one shape.
struct Advanced {
  at::Tensor self;             // with the indexed dimensions in front
  std::vector<int64_t> order;  // the original's dimensions in this order
  at::Tensor positions;        // [...shape, indexed dimensions]
  int64_t indexed = 0;
  int64_t result_at = 0;  // position of the index's dimensions in the result

  Advanced(const at::Tensor& original, const c10::List<std::optional<at::Tensor>>& indices) {
    std::vector<at::Tensor> tensors;
    std::vector<int64_t> dims;
    int64_t dim = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<at::Tensor> index = indices.get(i);
      if (!index || !index->defined()) {
        ++dim;
        continue;
      }
      if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) {
        CheckMask(*index, original, dim);
        const at::Tensor rows = Nonzero(index->to(original.device()));
        for (int64_t d = 0; d < index->dim(); ++d) {
          tensors.push_back(rows.select(1, d));
          dims.push_back(dim++);
        }
      } else {
        TORCH_CHECK_INDEX(index->scalar_type() == at::kLong || index->scalar_type() == at::kInt,
                          "tensors used as indices must be long, int, byte or bool tensors");
        tensors.push_back(Dense(index->to(original.device()), at::kLong));
        dims.push_back(dim++);
      }
    }
    TORCH_CHECK_INDEX(dim <= original.dim(), "too many indices for tensor of dimension ", original.dim(), " (got ", dim,
                      ")");
    indexed = static_cast<int64_t>(dims.size());
    // Adjacent indexed dimensions stay in place, others move to the front, as in NumPy.
    const bool adjacent = indexed == 0 || dims.back() - dims.front() + 1 == indexed;
    result_at = adjacent && indexed > 0 ? dims.front() : 0;
    order = dims;
    for (int64_t d = 0; d < original.dim(); ++d)
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
    self = original.permute(order);
    tensors = Broadcast(tensors);
    if (tensors.empty()) return;
    TORCH_CHECK_INDEX(
        tensors[0].numel() == 0 || !std::ranges::any_of(dims, [&](auto d) { return original.size(d) == 0; }),
        "index is out of bounds for dimension with size 0");
    std::vector<int64_t> shape = tensors[0].sizes().vec();
    shape.push_back(indexed);
    positions = Empty(shape, at::kLong, original);
    for (size_t i = 0; i < tensors.size(); ++i) positions.select(-1, static_cast<int64_t>(i)).copy_(tensors[i]);
  }

  static std::vector<at::Tensor> Broadcast(const std::vector<at::Tensor>& tensors) {
    try {
      return at::expand_outplace(at::TensorList(tensors));
    } catch (const c10::Error&) {
      std::ostringstream shapes;
      for (size_t i = 0; i < tensors.size(); ++i) shapes << (i == 0 ? "" : ", ") << tensors[i].sizes();
      TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                        shapes.str());
    }
  }

  // Permutes [index shape, rest] to the result's order of dimensions, and back.
  at::Tensor ToResult(const at::Tensor& gathered) const { return gathered.permute(Permutation()); }
  at::Tensor FromResult(const at::Tensor& result) const {
    const std::vector<int64_t> forward = Permutation();
    std::vector<int64_t> inverse(forward.size());
    for (size_t i = 0; i < forward.size(); ++i) inverse[static_cast<size_t>(forward[i])] = static_cast<int64_t>(i);
    return result.permute(inverse);
  }
  std::vector<int64_t> GatheredShape() const {
    std::vector<int64_t> shape = positions.sizes().slice(0, static_cast<size_t>(positions.dim() - 1)).vec();
    for (int64_t d = indexed; d < self.dim(); ++d) shape.push_back(self.size(d));
    return shape;
  }

 private:
  std::vector<int64_t> Permutation() const {
    const int64_t index_rank = positions.dim() - 1;
    std::vector<int64_t> result;
    for (int64_t d = 0; d < result_at; ++d) result.push_back(index_rank + d);
    for (int64_t d = 0; d < index_rank; ++d) result.push_back(d);
    for (int64_t d = result_at; d < self.dim() - indexed; ++d) result.push_back(index_rank + d);
    return result;
  }
};

bool HasIndex(const c10::List<std::optional<at::Tensor>>& indices) {
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices.get(i) && indices.get(i)->defined()) return true;
  return false;
}

at::Tensor Index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  if (MovesAsBits(self)) return Index(Bits(self), indices).view(self.scalar_type());
  if (!KernelsKnow(self) || !HasIndex(indices)) return FallBack<at::_ops::index_Tensor>(self, indices);
  const Advanced call(self, indices);
  const std::vector<int64_t> shape = call.GatheredShape();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end())
    return call.ToResult(Empty(shape, self.scalar_type(), self));
  const at::Tensor gathered = KernelCall("GatherND").In(Dense(call.self)).In(call.positions).One();
  return call.ToResult(gathered.view(shape));
}

at::Tensor MaskedSelect(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask, got ", mask.scalar_type());
  const std::vector<int64_t> shape = at::infer_size(self.sizes(), mask.sizes());
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(mask.expand(shape).reshape({-1}));
  return Index(self.expand(shape).reshape({-1}), indices);
}

// The mask, if it is the only index, in a shape that broadcasts over `self`; else undefined.
at::Tensor OnlyMask(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  at::Tensor mask;
  int64_t dim = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!Has(index)) {
      ++dim;
      continue;
    }
    if (mask.defined() || index->scalar_type() != at::kBool) return {};
    CheckMask(*index, self, dim);
    mask = *index;
    dim += index->dim();
  }
  if (!mask.defined() || dim > self.dim()) return {};
  std::vector<int64_t> shape = mask.sizes().vec();
  shape.resize(static_cast<size_t>(mask.dim() + self.dim() - dim), 1);
  return mask.to(self.device()).reshape(shape);
}

// Elements are written in no order, so that none may be read as a value or an index, as on other devices.
void CheckApart(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values) {
  at::assert_no_overlap(self, values);
  for (const std::optional<at::Tensor>& index : indices)
    if (index.has_value() && index->defined()) at::assert_no_overlap(self, *index);
}

at::Tensor& IndexPut(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                     bool accumulate, bool unsafe) {
  // As in torch, the value may have any dtype; and the host need not wait for the number of selected elements.
  if (!accumulate && values.numel() == 1)
    if (const at::Tensor mask = OnlyMask(self, indices); mask.defined())
      return self.masked_fill_(mask, values.reshape({}));
  // A call on the CPU would have copies of them, in which nothing overlaps.
  CheckApart(self, indices, values);
  if (MovesAsBits(self) && !accumulate && values.scalar_type() == self.scalar_type()) {
    at::Tensor bits = Bits(self);
    IndexPut(bits, indices, Bits(values), accumulate, unsafe);
    return self;
  }
  if (accumulate && self.is_complex() && values.is_complex() && HasIndex(indices)) {
    at::Tensor parts = at::view_as_real(self);  // each index selects both
    IndexPut(parts, indices, at::view_as_real(values), accumulate, unsafe);
    return self;
  }
  if (!KernelsKnow(self) || !HasIndex(indices) || (accumulate && self.scalar_type() == at::kBool))
    return FallBack<at::_ops::_index_put_impl_>(self, indices, values, accumulate, unsafe);
  const Advanced call(self, indices);
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  const std::vector<int64_t> shape = call.GatheredShape();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return self;
  const at::Tensor gathered_like = Empty(shape, self.scalar_type(), self);
  const at::Tensor source = Dense(IsHostScalar(values) ? Dense(values) : values, self.scalar_type());
  const std::vector<int64_t> result = call.ToResult(gathered_like).sizes().vec();
  TORCH_CHECK(at::is_expandable_to(source.sizes(), result), "shape mismatch: value tensor of shape ", source.sizes(),
              " cannot be broadcast to indexing result of shape ", at::IntArrayRef(result));
  const at::Tensor updates = Dense(call.FromResult(source.expand(result)));
  KernelCall("ScatterND")
      .In(Dense(call.self))
      .In(call.positions)
      .In(updates)
      .Set("reduction", std::string(accumulate ? "add" : "none"))
      .Into(call.self);
  return self;
}

at::Tensor& CatOut(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  int64_t axis = 0;
  {
    OutputMeta<at::meta::structured_cat> meta(out);
    axis = meta.meta(tensors, dim).dim;
  }
  if (out.numel() == 0) return out;
  KernelCall call("Concat");
  for (const at::Tensor& t : tensors)  // torch accepts an empty vector among any shapes
    if (t.numel() > 0) call.In(Bits(Dense(t.to(out.scalar_type()))));
  call.Set("axis", axis).Into(Bits(out));
  return out;
}

at::Tensor& ArangeOut(const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step, at::Tensor& out) {
  // As in torch, a range of int64 truncates its bounds and its step before it is counted.
  const bool integral =
      out.scalar_type() == at::kLong || (start.isIntegral(false) && end.isIntegral(false) && step.isIntegral(false));
  const double first = start.toDouble(), last = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(integral ? step.toLong() != 0 : by != 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(first) && std::isfinite(last), "unsupported range: ", first, " -> ", last);
  TORCH_CHECK(by > 0 ? last >= first : last <= first, "upper bound and lower bound inconsistent with step sign");
  const int64_t count = static_cast<int64_t>(
      integral ? (end.toLong() - start.toLong() + step.toLong() - (step.toLong() > 0 ? 1 : -1)) / step.toLong()
               : static_cast<int64_t>(std::ceil((last - first) / by)));
  if (out.numel() != count) out.resize_({count});
  if (count == 0) return out;
  KernelCall call("Range");
  // The kernel computes the count itself: an end half a step behind the last element makes it unambiguous.
  if (integral) {
    call.HostScalar(start.toLong()).HostScalar(end.toLong()).HostScalar(step.toLong()).Into(out);
  } else {
    call.HostScalar(first).HostScalar(first + (static_cast<double>(count) - 0.5) * by).HostScalar(by).Into(out);
  }
  return out;
}

at::Tensor& Triangle(const at::Tensor& self, int64_t diagonal, bool upper, at::Tensor& out) {
  KernelCall("Trilu").In(Dense(self)).HostScalar(diagonal).Set("upper", static_cast<int64_t>(upper)).Into(out);
  return out;
}
at::Tensor& TriuOut(const at::Tensor& self, int64_t diagonal, at::Tensor& out) {
  Infer<at::meta::structured_triu>(out, self, diagonal);
  if (MovesAsBits(self)) {
    at::Tensor bits = Bits(out);
    TriuOut(Bits(self), diagonal, bits);
    return out;
  }
  if (!KernelsKnow(self)) return FallBack<at::_ops::triu_out>(self, diagonal, out);
  return out.numel() == 0 ? out : Triangle(self, diagonal, true, out);
}
at::Tensor& TrilOut(const at::Tensor& self, int64_t diagonal, at::Tensor& out) {
  Infer<at::meta::structured_tril>(out, self, diagonal);
  if (MovesAsBits(self)) {
    at::Tensor bits = Bits(out);
    TrilOut(Bits(self), diagonal, bits);
    return out;
  }
  if (!KernelsKnow(self)) return FallBack<at::_ops::tril_out>(self, diagonal, out);
  return out.numel() == 0 ? out : Triangle(self, diagonal, false, out);
}

void TopK(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted, at::Tensor& values,
          at::Tensor& indices) {
  if (self.dim() == 0) {
    values.copy_(self);
    indices.zero_();
    return;
  }
  const bool truth = self.scalar_type() == at::kBool;
  KernelCall("TopK")
      .In(Dense(self, truth ? at::kByte : self.scalar_type()))
      .Host({k})
      .Set("axis", at::maybe_wrap_dim(dim, self.dim()))
      .Set("largest", static_cast<int64_t>(largest))
      .Set("sorted", static_cast<int64_t>(sorted))
      .Into({values, indices});
}
std::tuple<at::Tensor&, at::Tensor&> TopKOut(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted,
                                             at::Tensor& values, at::Tensor& indices) {
  InferTwo<at::meta::structured_topk>(values, indices, self, k, dim, largest, sorted);
  if (values.numel() == 0) return {values, indices};
  if (!KernelsKnow(self)) return FallBack<at::_ops::topk_values>(self, k, dim, largest, sorted, values, indices);
  TopK(self, k, dim, largest, sorted, values, indices);
  return {values, indices};
}
// A sort is a TopK of all elements; equal elements keep their order.
std::tuple<at::Tensor&, at::Tensor&> SortOut(const at::Tensor& self, std::optional<bool> stable, int64_t dim,
                                             bool descending, at::Tensor& values, at::Tensor& indices) {
  InferTwo<at::meta::structured_sort_stable>(values, indices, self, stable, dim, descending);
  if (values.numel() == 0) return {values, indices};
  if (!KernelsKnow(self)) return FallBack<at::_ops::sort_values_stable>(self, stable, dim, descending, values, indices);
  TopK(self, self.dim() == 0 ? 1 : self.size(dim), dim, descending, true, values, indices);
  return {values, indices};
}

at::Tensor& IsinOut(const at::Tensor& elements, const at::Tensor& tests, bool, bool invert, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kBool, "isin expects a bool output, got ", out.scalar_type());
  at::native::resize_output(out, elements.sizes());
  if (out.numel() == 0) return out;
  if (tests.numel() == 0) return out.fill_(invert);
  const at::Tensor found = elements.unsqueeze(-1).eq(tests.reshape({-1})).any(-1);
  return out.copy_(invert ? found.logical_not() : found);
}

bool Equal(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(), "Cannot compare two tensors on different devices. Got: ", a.device(), " and ",
              b.device());
  if (a.sizes() != b.sizes()) return false;
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of data type ", a.scalar_type(), " but got ",
              b.scalar_type());
  return a.eq(b).all().item<bool>();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("index_select", &IndexSelect);
  m.impl("index_select.out", &IndexSelectOut);
  m.impl("gather.out", &GatherOut);
  m.impl("scatter.src_out", &ScatterSourceOut);
  m.impl("scatter.value_out", &ScatterValueOut);
  m.impl("scatter_add.out", &ScatterAddOut);
  m.impl("nonzero", &Nonzero);
  m.impl("index.Tensor", &Index);
  m.impl("masked_select", &MaskedSelect);
  m.impl("_index_put_impl_", &IndexPut);
  m.impl("cat.out", &CatOut);
  m.impl("arange.start_out", &ArangeOut);
  m.impl("triu.out", &TriuOut);
  m.impl("tril.out", &TrilOut);
  m.impl("topk.values", &TopKOut);
  m.impl("sort.values_stable", &SortOut);
  m.impl("isin.Tensor_Tensor_out", &IsinOut);
  m.impl("equal", &Equal);
}

}  // namespace
}  // namespace npu::aten
