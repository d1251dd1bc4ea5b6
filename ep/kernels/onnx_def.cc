#include "ep/kernels/onnx_def.h"

#include "ep/kernels/op_check.h"

namespace npu {

ArgDef Input(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes}; }
ArgDef OptionalInput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .optional = true}; }
ArgDef VariadicInput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .variadic = true}; }
ArgDef Output(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes}; }
ArgDef OptionalOutput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .optional = true}; }
ArgDef VariadicOutput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .variadic = true}; }

ArgDef HostInput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .cpu = true}; }
ArgDef OptionalHostInput(const char* name, DTypeSet dtypes) {
  return {.name = name, .dtypes = dtypes, .optional = true, .cpu = true};
}
ArgDef HostOutput(const char* name, DTypeSet dtypes) { return {.name = name, .dtypes = dtypes, .cpu = true}; }

AttrDef IntAttribute(const char* name, int64_t fallback) {
  return {.name = name, .kind = AttrDef::Kind::kInt, .fallback = fallback};
}
AttrDef IntAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInt}; }
AttrDef RequiredInt(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInt, .required = true}; }
AttrDef FloatAttribute(const char* name, double fallback) {
  return {.name = name, .kind = AttrDef::Kind::kFloat, .fallback = fallback};
}
AttrDef FloatAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kFloat}; }
AttrDef StringAttribute(const char* name, const char* fallback) {
  return {.name = name, .kind = AttrDef::Kind::kString, .fallback = std::string(fallback)};
}
AttrDef IntsAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kInts}; }
AttrDef IntsAttribute(const char* name, std::vector<int64_t> fallback) {
  return {.name = name, .kind = AttrDef::Kind::kInts, .fallback = std::move(fallback)};
}
AttrDef FloatsAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kFloats}; }
AttrDef ValueAttribute(const char* name) { return {.name = name, .kind = AttrDef::Kind::kTensor}; }

OpDef ForShapes(OpDef def, ShapeArithmetic how) {
  def.shape_arithmetic = how;
  return def;
}

OpDef Light(OpDef def) {
  def.light = true;
  return def;
}

OpDef OfEachType(OpDef def) {
  for (int number = 1; number < 64; ++number) {
    const auto type = static_cast<DType>(number);
    if (def.inputs[0].dtypes.Contains(type)) def.typings.push_back({.inputs = {type}, .outputs = {type}});
  }
  return def;
}

std::vector<int64_t> ReadHostInts(const char* op, const char* name, const TensorView& view) {
  NPU_OP_CHECK(op, view.shape.rank() <= 1, "expected ", name, " to be a list, got shape ", view.shape);
  const int64_t n = view.elements();
  if (n == 0) return {};
  if (view.dtype == DType::kInt32) return std::vector<int64_t>(view.as<int32_t>(), view.as<int32_t>() + n);
  NPU_OP_CHECK(op, view.dtype == DType::kInt64, "expected ", name, " of int32 or int64, got ", NameOf(view.dtype));
  return std::vector<int64_t>(view.as<int64_t>(), view.as<int64_t>() + n);
}

int64_t ReadHostInt(const char* op, const char* name, const TensorView& view) {
  const std::vector<int64_t> values = ReadHostInts(op, name, view);
  NPU_OP_CHECK(op, values.size() == 1, "expected ", name, " to be one value, got shape ", view.shape);
  return values[0];
}

}  // namespace npu
