// What the ONNX reductions share: their axes, an attribute in the first version and an input since the second, and
// whether the reduced axes stay with size 1.
#pragma once

#include <vector>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/plan.h"

namespace npu {

class ReduceArguments {
 public:
  explicit ReduceArguments(const Attributes& attributes)
      : axes_(attributes.Ints("axes")),
        keep_dims_(attributes.Bool("keepdims")),
        noop_(attributes.Bool("noop_with_empty_axes", false)) {}

  // The reduced axes of the first input, as PlanReduce takes them.
  uint32_t Reduced(const char* op, OpContext& ctx) const {
    const std::vector<int64_t> axes = ctx.Input(1) ? ReadHostInts(op, "axes", ctx.Input(1)) : axes_;
    return ReducedAxes(op, axes, ctx.Input(0).shape.rank(), noop_);
  }
  bool keep_dims() const { return keep_dims_; }

 private:
  std::vector<int64_t> axes_;  // the attribute
  bool keep_dims_, noop_;
};

inline OpDef AttributeAxesDef(const char* type, int since, int until, DTypeSet types, decltype(OpDef::make) make) {
  return {
      .type = type,
      .since = since,
      .until = until,
      .inputs = {Input("data", types)},
      .outputs = {Output("reduced", types)},
      .attributes = {IntsAttribute("axes"), IntAttribute("keepdims", 1)},
      .make = std::move(make),
  };
}

inline OpDef InputAxesDef(const char* type, int since, int until, DTypeSet types, decltype(OpDef::make) make) {
  return {
      .type = type,
      .since = since,
      .until = until,
      .inputs = {Input("data", types), OptionalHostInput("axes", {DType::kInt64})},
      .outputs = {Output("reduced", types)},
      .attributes = {IntAttribute("keepdims", 1), IntAttribute("noop_with_empty_axes", 0)},
      .make = std::move(make),
  };
}

}  // namespace npu
