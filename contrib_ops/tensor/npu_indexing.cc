// npu_indexing(self; begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask) -> y.
// The semantics are in npu_indexing.py.
#include "contrib_ops/tensor/npu_indexing.h"

#include "ep/kernels/movement/slice_range.h"
#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/environment.h"

namespace npu {
namespace {

using In = nodes::NPUIndexing::In;
using Out = nodes::NPUIndexing::Out;

constexpr const char* kOp = "npu_indexing";
constexpr int64_t kFirst = std::numeric_limits<int64_t>::min(), kLast = std::numeric_limits<int64_t>::max();

// Bit i of an argument; the bits behind the last are those of its sign.
bool Has(int64_t mask, size_t i) { return (mask >> std::min<size_t>(i, 63) & 1) != 0; }

// To older generations of devices all masks are 0.
int64_t Mask(const KernelInfo& info, const char* name) {
  return GenerationFromEnvironment() == Generation::kOlder ? 0 : info.attributes.Int(name);
}

// The result as a walk over the input.
struct View {
  Shape shape;
  std::array<int64_t, Shape::kMaxRank> strides{};
  int64_t first = 0;

  void Add(int64_t size, int64_t stride) {
    shape.push_back(size);
    strides[static_cast<size_t>(shape.rank() - 1)] = stride;
  }
};

class IndexingKernel final : public Kernel {
 public:
  explicit IndexingKernel(const KernelInfo& info)
      : begin_(info.attributes.Ints("begins")),
        end_(info.attributes.Ints("ends")),
        strides_(info.attributes.Ints("strides")),
        begin_mask_(Mask(info, "begin_mask")),
        end_mask_(Mask(info, "end_mask")),
        ellipsis_mask_(Mask(info, "ellipsis_mask")),
        new_axis_mask_(Mask(info, "new_axis_mask")),
        shrink_axis_mask_(Mask(info, "shrink_axis_mask")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    const View view = Plan(x.shape);
    const TensorView y = ctx.Output(Out::y, x.dtype, view.shape);
    if (y.elements() == 0) return;
    const size_t size = BytesFor(x.dtype, 1);
    LaunchStridedCopy(ctx, kOp, view.shape, view.strides, size, y.data,
                      x.as<const char>() + view.first * static_cast<int64_t>(size));
  }

 private:
  View Plan(const Shape& shape) const {
    const size_t count = begin_.size();
    NPU_OP_CHECK(kOp, end_.size() == count && strides_.size() == count,
                 "expected begin, end and strides of one length, got ", count, ", ", end_.size(), " and ",
                 strides_.size());
    size_t ellipses = 0, taking = 0;
    for (size_t i = 0; i < count; ++i) {
      ellipses += Has(ellipsis_mask_, i) ? 1 : 0;
      taking += !Has(ellipsis_mask_, i) && !Has(new_axis_mask_, i) ? 1 : 0;
    }
    const int rank = shape.rank();
    NPU_OP_CHECK(kOp, ellipses <= 1, "expected at most one ellipsis, got ", ellipses);
    NPU_OP_CHECK(kOp, taking <= static_cast<size_t>(rank), "expected at most ", rank,
                 " entries that take an axis, got ", taking);
    const auto dense = DenseStrides(shape);
    View view;
    int axis = 0;
    const auto keep = [&](int until) {
      for (; axis < until; ++axis) view.Add(shape[axis], dense[static_cast<size_t>(axis)]);
    };
    for (size_t i = 0; i < count; ++i) {
      if (Has(ellipsis_mask_, i)) {
        keep(axis + rank - static_cast<int>(taking));
      } else if (Has(new_axis_mask_, i)) {
        view.Add(1, 0);
      } else {
        Take(i, axis, shape[axis], dense[static_cast<size_t>(axis)], view);
        ++axis;
      }
    }
    keep(rank);
    return view;
  }

  // Entry i, a slice or an index of an axis.
  void Take(size_t i, int axis, int64_t size, int64_t dense, View& view) const {
    const int64_t stride = strides_[i];
    NPU_OP_CHECK(kOp, stride != 0, "expected strides that are not 0, got 0");
    if (Has(shrink_axis_mask_, i)) {
      NPU_OP_CHECK(kOp, stride > 0, "expected a positive stride of an axis to drop, got ", stride);
      NPU_OP_CHECK(kOp, begin_[i] >= -size && begin_[i] < size, "expected an index from ", -size, " to ", size - 1,
                   " of axis ", axis, ", got ", begin_[i]);
      view.first += (begin_[i] < 0 ? begin_[i] + size : begin_[i]) * dense;
      return;
    }
    const int64_t start = Has(begin_mask_, i) ? (stride > 0 ? kFirst : kLast) : begin_[i];
    const int64_t end = Has(end_mask_, i) ? (stride > 0 ? kLast : kFirst) : end_[i];
    const SliceRange range = ResolveSliceRange(kOp, start, end, stride, size);
    // The stride of a single element may be huge.
    view.Add(range.count, range.count <= 1 ? 0 : dense * range.step);
    if (range.count > 0) view.first += range.start * dense;
  }

  std::vector<int64_t> begin_, end_, strides_;
  int64_t begin_mask_, end_mask_, ellipsis_mask_, new_axis_mask_, shrink_axis_mask_;
};

NPU_KERNEL(NPUIndexing, IndexingKernel);

}  // namespace
}  // namespace npu
