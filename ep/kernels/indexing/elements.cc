// GatherElements and ScatterElements, whose first name was Scatter: each index replaces the coordinate of its own
// position along the axis.
#include <algorithm>
#include <array>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/indexing/index.h"
#include "ep/kernels/indexing/scatter_reduction.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/strided_copy.h"

namespace npu {
namespace {

// Maps the positions of an indices tensor to offsets in a data tensor of the same rank.
struct ElementPlan {
  int64_t total = 0;
  int64_t n = 0;       // of the data along the axis
  int64_t stride = 0;  // of the data along the axis
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> dims{};     // of the indices
  std::array<int64_t, Shape::kMaxRank> strides{};  // of the data, 0 along the axis
};

ElementPlan PlanElements(const char* op, const Shape& data, const Shape& indices, int axis) {
  NPU_OP_CHECK(op, indices.rank() == data.rank(), "expected indices of the data's rank ", data.rank(), ", got ",
               indices);
  ElementPlan plan;
  plan.total = indices.Elements();
  plan.rank = data.rank();
  plan.strides = DenseStrides(data);
  plan.n = data[axis];
  plan.stride = plan.strides[axis];
  plan.strides[axis] = 0;
  for (int d = 0; d < data.rank(); ++d) {
    NPU_OP_CHECK(op, d == axis || indices[d] <= data[d], "expected indices within the data's shape ", data,
                 " but for axis ", axis, ", got ", indices);
    plan.dims[d] = indices[d];
  }
  return plan;
}

// Calls f(i, offset) for positions [begin, end); offset is that of coordinate 0 along the axis.
template <class F>
void ForEachPosition(const ElementPlan& plan, int64_t begin, int64_t end, const F& f) {
  const int last = plan.rank - 1;
  std::array<int64_t, Shape::kMaxRank> index{};
  int64_t offset = 0;
  for (int64_t d = last, rest = begin; d >= 0; --d) {
    index[d] = rest % plan.dims[d];
    rest /= plan.dims[d];
    offset += index[d] * plan.strides[d];
  }
  for (int64_t i = begin; i < end;) {
    const int64_t row_end = std::min(end, i + plan.dims[last] - index[last]);
    for (; i < row_end; ++i, offset += plan.strides[last]) f(i, offset);
    offset -= plan.strides[last] * plan.dims[last];
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      offset += plan.strides[d];
      if (++index[d] < plan.dims[d]) break;
      offset -= plan.strides[d] * plan.dims[d];
      index[d] = 0;
    }
  }
}

class GatherElementsKernel : public Kernel {
 public:
  explicit GatherElementsKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const int axis = NormalizeAxis("GatherElements", axis_, x.shape.rank());
    const ElementPlan plan = PlanElements("GatherElements", x.shape, indices.shape, axis);
    const TensorView y = ctx.Output(0, x.dtype, indices.shape);
    if (plan.total == 0) return;
    DispatchSize(BitsOf(x.dtype) / 8, [&](auto element) {
      DispatchIndices("GatherElements", indices, [&](auto type) {
        using T = decltype(element);
        using Index = decltype(type);
        ctx.Launch("GatherElements", [plan, from = x.as<const T>(), at = indices.as<const Index>(), to = y.as<T>()] {
          ParallelFor(plan.total, kCheapGrain, [&](int64_t begin, int64_t end) {
            ForEachPosition(plan, begin, end, [&](int64_t i, int64_t offset) {
              to[i] = from[offset + CheckedIndex("GatherElements", at, i, plan.n) * plan.stride];
            });
          });
        });
      });
    });
  }

 private:
  int64_t axis_;
};

class ScatterElementsKernel : public Kernel {
 public:
  explicit ScatterElementsKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")), reduction_(ScatterReductionOf(info)) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const TensorView updates = ctx.Input(2);
    CheckSameType("ScatterElements", x, updates);
    NPU_CHECK(updates.shape == indices.shape, "[ScatterElements] expected updates of the indices' shape ",
              indices.shape, ", got ", updates.shape);
    const int axis = NormalizeAxis("ScatterElements", axis_, x.shape.rank());
    const ElementPlan plan = PlanElements("ScatterElements", x.shape, indices.shape, axis);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    LaunchCopy(ctx, "ScatterElements", x, y);
    if (plan.total == 0) return;
    const CombineRow combine = FindCombine("ScatterElements", reduction_, x.dtype);
    const int64_t size = BitsOf(x.dtype) / 8;
    DispatchIndices("ScatterElements", indices, [&](auto type) {
      using Index = decltype(type);
      ctx.Launch("ScatterElements",
                 [=, from = updates.as<const char>(), at = indices.as<const Index>(), to = y.as<char>()] {
                   // On one thread: if two updates hit the same element, the later one wins, or both are applied.
                   ForEachPosition(plan, 0, plan.total, [&](int64_t i, int64_t offset) {
                     const int64_t index = CheckedIndex("ScatterElements", at, i, plan.n);
                     combine(to + (offset + index * plan.stride) * size, from + i * size, 1);
                   });
                 });
    });
  }

 private:
  int64_t axis_;
  ScatterReduction reduction_;
};

NPU_ONNX_KERNEL({
    .type = "GatherElements",
    .since = 11,
    .until = 13,
    .inputs = {Input("data", kFixedWidth), Input("indices", kIndices)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("axis", 0)},
    .make = MakeKernel<GatherElementsKernel>,
});
OpDef ScatterDef(const char* type, int since, int until, DTypeSet types, std::vector<AttrDef> attributes) {
  return {
      .type = type,
      .since = since,
      .until = until,
      .inputs = {Input("data", types), Input("indices", kIndices), Input("updates", types)},
      .outputs = {Output("output", types)},
      .attributes = std::move(attributes),
      .may_alias = {{0, 0}},
      .make = MakeKernel<ScatterElementsKernel>,
      .unsupported = WhyScatterUnsupported,
  };
}

NPU_ONNX_KERNEL(ScatterDef("Scatter", 9, 11, kWithoutBFloat16, {IntAttribute("axis", 0)}));
NPU_ONNX_KERNEL(ScatterDef("ScatterElements", 11, 18, kFixedWidth,
                           {IntAttribute("axis", 0), StringAttribute("reduction", "none")}));

}  // namespace
}  // namespace npu
