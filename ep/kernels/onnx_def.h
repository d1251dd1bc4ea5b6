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
inline ArgDef Input(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes}; }
inline ArgDef OptionalInput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .optional = true};
}
inline ArgDef VariadicInput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .variadic = true};
}
inline ArgDef Output(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes}; }
inline ArgDef OptionalOutput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .optional = true};
}
inline ArgDef VariadicOutput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .variadic = true};
}

// An input whose value decides shapes: it is in host memory and is read before the launch.
inline ArgDef HostInput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .cpu = true}; }
inline ArgDef OptionalHostInput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .optional = true, .cpu = true};
}
// An output that the host reads: a shape.
inline ArgDef HostOutput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .cpu = true}; }

// The registry fills in attributes that a node omits, so kernels need no defaults of their own. The overloads that take
// only a name have no default: absence has a meaning of its own, and the kernel calls Has().
inline AttrDef IntAttribute(const char* name, int64_t fallback) {
  return {.name = name, .kind = AttrDef::Kind::kInt, .fallback = fallback};
}
inline AttrDef IntAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInt}; }
inline AttrDef RequiredInt(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInt, .required = true}; }
inline AttrDef FloatAttribute(const char* name, double fallback) {
  return {.name = name, .kind = AttrDef::Kind::kFloat, .fallback = fallback};
}
inline AttrDef FloatAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kFloat}; }
inline AttrDef StringAttribute(const char* name, const char* fallback) {
  return {.name = name, .kind = AttrDef::Kind::kString, .fallback = std::string(fallback)};
}
inline AttrDef IntsAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInts}; }
inline AttrDef IntsAttribute(const char* name, std::vector<int64_t> fallback) {
  return {.name = name, .kind = AttrDef::Kind::kInts, .fallback = std::move(fallback)};
}
inline AttrDef FloatsAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kFloats}; }
inline AttrDef ValueAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kTensor}; }

inline OpDef ForShapes(OpDef def, ShapeArithmetic how) {
  def.shape_arithmetic = how;
  return def;
}

// The values of a host input of int32 or int64: a list, or a scalar as a list of one.
inline std::vector<int64_t> ReadHostInts(const char* op, const char* name, const TensorView& view) {
  NPU_CHECK(view.shape.rank() <= 1, "[", op, "] expected ", name, " to be a list, got shape ", view.shape);
  const int64_t n = view.elements();
  if (n == 0) return {};
  if (view.dtype == DType::kInt32) return std::vector<int64_t>(view.as<int32_t>(), view.as<int32_t>() + n);
  NPU_CHECK(view.dtype == DType::kInt64, "[", op, "] expected ", name, " of int32 or int64, got ", NameOf(view.dtype));
  return std::vector<int64_t>(view.as<int64_t>(), view.as<int64_t>() + n);
}

// Like ReadHostInts, for exactly one value.
inline int64_t ReadHostInt(const char* op, const char* name, const TensorView& view) {
  const std::vector<int64_t> values = ReadHostInts(op, name, view);
  NPU_CHECK(values.size() == 1, "[", op, "] expected ", name, " to be one value, got shape ", view.shape);
  return values[0];
}

}  // namespace npu
