// Helpers for the definitions of standard operators.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

// A definition is written with named fields, one per line:
//
//   NPU_ONNX_KERNEL({
//       .type = "TopK",
//       .since = 10,
//       .until = 24,
//       .inputs = {Input("X", kNumeric), HostInput("K", {DType::kInt64})},
//       .outputs = {Output("Values", kNumeric), Output("Indices", {DType::kInt64})},
//       .attributes = {IntAttribute("axis", -1), IntAttribute("largest", 1), IntAttribute("sorted", 1)},
//       .make = MakeKernel<TopKKernel>,
//   });
//
// The names are those of the operator's ONNX schema. An operator whose inputs changed between versions has one
// definition per form; similar operators share a function that returns their OpDef.
ArgDef Input(const char* name, DTypeSet dtypes);
ArgDef OptionalInput(const char* name, DTypeSet dtypes);
ArgDef VariadicInput(const char* name, DTypeSet dtypes);
ArgDef Output(const char* name, DTypeSet dtypes);
ArgDef OptionalOutput(const char* name, DTypeSet dtypes);
ArgDef VariadicOutput(const char* name, DTypeSet dtypes);

// An input whose value decides shapes: it is in host memory and is read before the launch.
ArgDef HostInput(const char* name, DTypeSet dtypes);
ArgDef OptionalHostInput(const char* name, DTypeSet dtypes);
// An output that the host reads: a shape.
ArgDef HostOutput(const char* name, DTypeSet dtypes);

// The registry fills in attributes that a node omits, so kernels need no defaults of their own. The overloads that take
// only a name have no default: absence has a meaning of its own, and the kernel calls Has().
AttrDef IntAttribute(const char* name, int64_t fallback);
AttrDef IntAttribute(const char* name);
AttrDef RequiredInt(const char* name);
AttrDef FloatAttribute(const char* name, double fallback);
AttrDef FloatAttribute(const char* name);
AttrDef StringAttribute(const char* name, const char* fallback);
AttrDef IntsAttribute(const char* name);
AttrDef IntsAttribute(const char* name, std::vector<int64_t> fallback);
AttrDef FloatsAttribute(const char* name);
AttrDef ValueAttribute(const char* name);

OpDef ForShapes(OpDef def, ShapeArithmetic how);
OpDef Light(OpDef def);

// For an operator of domain npu that has no definition: its result has the type of its only input.
OpDef OfEachType(OpDef def);

// The values of a host input of int32 or int64: a list, or a scalar as a list of one.
std::vector<int64_t> ReadHostInts(const char* op, const char* name, const TensorView& view);

// Like ReadHostInts, for exactly one value.
int64_t ReadHostInt(const char* op, const char* name, const TensorView& view);

}  // namespace npu
