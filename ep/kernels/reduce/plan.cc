#include "ep/kernels/reduce/plan.h"

#include <algorithm>

#include "ep/kernels/op_check.h"

namespace npu {

void ReducePlan::Walk::Push(int64_t dim, int64_t stride) {
  total *= dim;
  dims[rank] = dim;
  strides[rank++] = stride;
}

ReducePlan PlanReduce(const Shape& shape, uint32_t reduced) {
  struct Group {
    int64_t dim, stride;
    bool folded;
  };
  std::array<Group, Shape::kMaxRank> groups;  // innermost first
  int count = 0;
  ReducePlan plan;
  Shape kept, folded;
  for (int d = 0; d < shape.rank(); ++d) ((reduced >> d & 1) != 0 ? folded : kept).push_back(shape[d]);
  plan.outputs = kept.Elements();
  plan.inputs_per_output = folded.Elements();
  if (plan.outputs == 0 || plan.inputs_per_output == 0) return plan;

  int64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    const bool fold = (reduced >> d & 1) != 0;
    if (count > 0 && groups[count - 1].folded == fold) {
      groups[count - 1].dim *= shape[d];
    } else {
      groups[count++] = {shape[d], stride, fold};
    }
    stride *= shape[d];
  }
  if (count > 0) {
    plan.row = groups[0].dim;
    plan.row_kept = !groups[0].folded;
  }
  for (int g = count - 1; g > 0; --g)
    (groups[g].folded ? plan.folded : plan.kept).Push(groups[g].dim, groups[g].stride);
  return plan;
}

Shape ReducedShape(const Shape& shape, uint32_t reduced, bool keep_dims) {
  Shape out;
  for (int d = 0; d < shape.rank(); ++d) {
    if ((reduced >> d & 1) == 0) {
      out.push_back(shape[d]);
    } else if (keep_dims) {
      out.push_back(1);
    }
  }
  return out;
}

uint32_t ReducedAxes(const char* op, const std::vector<int64_t>& axes, int rank, bool noop_when_empty) {
  if (axes.empty()) return noop_when_empty ? 0 : (1u << rank) - 1;
  uint32_t reduced = 0;
  for (int64_t axis : axes) {
    // A scalar has axes 0 and -1, as in torch and onnxruntime; their bit stands for no axis of the shape.
    const uint32_t bit = 1u << NormalizeAxis(op, axis, std::max(rank, 1));
    NPU_OP_CHECK(op, (reduced & bit) == 0, "expected axes without repetition, got axis ", axis, " twice");
    reduced |= bit;
  }
  return reduced;
}

}  // namespace npu
