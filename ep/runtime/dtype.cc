#include "ep/runtime/dtype.h"

#include <array>

namespace npu {
namespace {

struct DTypeInfo {
  const char* name;
  int bits;
};

// Indexed by the value of the DType.
constexpr std::array<DTypeInfo, 27> kTypes{
    {{"undefined", 0},      {"float32", 32},  {"uint8", 8},        {"int8", 8},           {"uint16", 16},
     {"int16", 16},         {"int32", 32},    {"int64", 64},       {"string", 0},         {"bool", 8},
     {"float16", 16},       {"float64", 64},  {"uint32", 32},      {"uint64", 64},        {"complex64", 64},
     {"complex128", 128},   {"bfloat16", 16}, {"float8e4m3fn", 8}, {"float8e4m3fnuz", 8}, {"float8e5m2", 8},
     {"float8e5m2fnuz", 8}, {"uint4", 4},     {"int4", 4},         {"float4e2m1", 4},     {"float8e8m0", 8},
     {"uint2", 2},          {"int2", 2}}};

bool Known(DType dtype) {
  const auto i = static_cast<int32_t>(dtype);
  return i >= 0 && i < static_cast<int32_t>(kTypes.size());
}

}  // namespace

int BitsOf(DType dtype) { return Known(dtype) ? kTypes[static_cast<size_t>(dtype)].bits : 0; }

const char* NameOf(DType dtype) { return Known(dtype) ? kTypes[static_cast<size_t>(dtype)].name : "unknown"; }

DType DTypeFromName(const std::string& name) {
  for (size_t i = 1; i < kTypes.size(); ++i)
    if (name == kTypes[i].name) return static_cast<DType>(i);
  Fail(ErrorCode::kInvalidArgument, "expected the name of an element type such as float32, got '", name, "'");
}

std::string DTypeSet::ToString() const {
  std::string out;
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (!Contains(static_cast<DType>(i))) continue;
    if (!out.empty()) out += ", ";
    out += kTypes[i].name;
  }
  return out;
}

}  // namespace npu
