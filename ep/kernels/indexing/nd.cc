// GatherND and ScatterND: the last dimension of the indices is a coordinate of a slice of the data.
#include <algorithm>
#include <array>
#include <cstring>

#include "ep/kernels/indexing/index.h"
#include "ep/kernels/indexing/scatter_reduction.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

// The tuples of an indices tensor, each the coordinates of a slice of `data`.
struct TuplePlan {
  int64_t tuples = 0;     // in total
  int64_t per_batch = 1;  // tuples of one batch
  int depth = 0;          // length of a tuple
  int64_t batch_bytes = 0;
  int64_t slice_bytes = 0;
  std::array<int64_t, Shape::kMaxRank> dims{};     // of the data, along the tuple
  std::array<int64_t, Shape::kMaxRank> strides{};  // bytes

  // Byte offset of the slice that tuple i names.
  int64_t Offset(const char* op, const int64_t* indices, int64_t i) const {
    int64_t offset = i / per_batch * batch_bytes;
    for (int d = 0; d < depth; ++d) {
      offset += CheckedIndex(op, indices, i * depth + d, dims[d]) * strides[d];
    }
    return offset;
  }
};

TuplePlan PlanTuples(const char* op, const TensorView& data, const TensorView& indices, int batch_dims) {
  const Shape& shape = data.shape;
  const int rank = shape.rank();
  NPU_OP_CHECK(op, indices.dtype == DType::kInt64, "expected indices of int64, got ", NameOf(indices.dtype));
  NPU_OP_CHECK(op, indices.shape.rank() >= 1 && rank >= 1, "expected data and indices of rank >= 1, got ", shape,
               " and ", indices.shape);
  NPU_OP_CHECK(op, batch_dims >= 0 && batch_dims < std::min(rank, indices.shape.rank()),
               "expected batch_dims below the ranks of ", shape, " and ", indices.shape, ", got ", batch_dims);
  for (int d = 0; d < batch_dims; ++d) {
    NPU_OP_CHECK(op, shape[d] == indices.shape[d], "expected equal batch dimensions, got ", shape, " and ",
                 indices.shape);
  }
  const int64_t depth = indices.shape.back();
  NPU_OP_CHECK(op, depth >= 0 && depth <= rank - batch_dims, "expected index tuples of at most ", rank - batch_dims,
               " for data ", shape, ", got ", depth);
  TuplePlan plan;
  plan.depth = static_cast<int>(depth);
  plan.tuples = indices.shape.Elements(0, indices.shape.rank() - 1);
  plan.per_batch = std::max<int64_t>(1, indices.shape.Elements(batch_dims, indices.shape.rank() - 1));
  plan.slice_bytes = shape.Elements(batch_dims + plan.depth, rank) * (BitsOf(data.dtype) / 8);
  int64_t stride = plan.slice_bytes;
  for (int d = plan.depth - 1; d >= 0; --d) {
    plan.dims[d] = shape[batch_dims + d];
    plan.strides[d] = stride;
    stride *= plan.dims[d];
  }
  plan.batch_bytes = stride;
  return plan;
}

class GatherNDKernel : public Kernel {
 public:
  explicit GatherNDKernel(const KernelInfo& info) : batch_dims_(info.attributes.Int("batch_dims")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const int batch_dims = static_cast<int>(std::clamp<int64_t>(batch_dims_, -1, Shape::kMaxRank));
    const TuplePlan plan = PlanTuples("GatherND", x, indices, batch_dims);
    Shape shape(indices.shape.begin(), indices.shape.rank() - 1);
    for (int d = batch_dims + plan.depth; d < x.shape.rank(); ++d) shape.push_back(x.shape[d]);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    ctx.Launch("GatherND", [plan, from = x.as<const char>(), at = indices.as<const int64_t>(), to = y.as<char>()] {
      const int64_t grain = std::max<int64_t>(1, kCopyGrain / plan.slice_bytes);
      ParallelFor(plan.tuples, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(to + i * plan.slice_bytes, from + plan.Offset("GatherND", at, i),
                      static_cast<size_t>(plan.slice_bytes));
        }
      });
    });
  }

 private:
  int64_t batch_dims_;
};

class ScatterNDKernel : public Kernel {
 public:
  explicit ScatterNDKernel(const KernelInfo& info) : reduction_(ScatterReductionOf(info)) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const TensorView updates = ctx.Input(2);
    CheckSameType("ScatterND", x, updates);
    const TuplePlan plan = PlanTuples("ScatterND", x, indices, 0);
    Shape expected(indices.shape.begin(), indices.shape.rank() - 1);
    for (int d = plan.depth; d < x.shape.rank(); ++d) expected.push_back(x.shape[d]);
    NPU_CHECK(updates.shape == expected, "[ScatterND] expected updates of shape ", expected, ", got ", updates.shape);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    LaunchCopy(ctx, "ScatterND", x, y);
    if (updates.elements() == 0) return;
    const CombineRow combine = FindCombine("ScatterND", reduction_, x.dtype);
    const int64_t slice = plan.slice_bytes / (BitsOf(x.dtype) / 8);
    ctx.Launch("ScatterND", [=, from = updates.as<const char>(), at = indices.as<const int64_t>(), to = y.as<char>()] {
      // On one thread: if two updates hit the same slice, the later one wins, or both are applied.
      for (int64_t i = 0; i < plan.tuples; ++i) {
        combine(to + plan.Offset("ScatterND", at, i), from + i * plan.slice_bytes, slice);
      }
    });
  }

 private:
  ScatterReduction reduction_;
};

NPU_ONNX_KERNEL({
    .type = "GatherND",
    .since = 11,
    .until = 13,
    .inputs = {Input("data", kFixedWidth), Input("indices", {DType::kInt64})},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("batch_dims", 0)},
    .make = MakeKernel<GatherNDKernel>,
});
NPU_ONNX_KERNEL({
    .type = "ScatterND",
    .since = 11,
    .until = 18,
    .inputs = {Input("data", kFixedWidth), Input("indices", {DType::kInt64}), Input("updates", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {StringAttribute("reduction", "none")},
    .may_alias = {{0, 0}},
    .make = MakeKernel<ScatterNDKernel>,
    .unsupported = WhyScatterUnsupported,
});

}  // namespace
}  // namespace npu
