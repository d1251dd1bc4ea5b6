// What the definitions of standard operators share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

// The names are those of the operator's ONNX schema. An operator whose inputs changed with a version has
// one definition per form.
inline OpDef OnnxDef(const char* type, int since, int until, std::vector<ArgDef> inputs, std::vector<ArgDef> outputs,
                     KernelFactory make) {
  OpDef def;
  def.type = type;
  def.since = since;
  def.until = until;
  for (const ArgDef& input : inputs) def.min_inputs += input.optional ? 0 : 1;
  def.inputs = std::move(inputs);
  def.outputs = std::move(outputs);
  def.make = make;
  return def;
}

// An input whose value decides shapes: it lives in host memory and is read before the launch.
inline ArgDef HostInput(const char* name, DTypeSet dtypes, bool optional = false) {
  return {name, dtypes, optional, false, true};
}

inline AttrDef IntAttribute(const char* name, int64_t fallback) { return {name, AttrDef::Kind::kInt, false, fallback}; }
inline AttrDef IntsAttribute(const char* name) { return {name, AttrDef::Kind::kInts, false, std::vector<int64_t>{}}; }
inline AttrDef FloatAttribute(const char* name, double fallback) {
  return {name, AttrDef::Kind::kFloat, false, fallback};
}
inline AttrDef StringAttribute(const char* name, const char* fallback) {
  return {name, AttrDef::Kind::kString, false, std::string(fallback)};
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

// As ReadHostInts, of exactly one value.
inline int64_t ReadHostInt(const char* op, const char* name, const TensorView& view) {
  const std::vector<int64_t> values = ReadHostInts(op, name, view);
  NPU_CHECK(values.size() == 1, "[", op, "] expected ", name, " to be one value, got shape ", view.shape);
  return values[0];
}

}  // namespace npu
