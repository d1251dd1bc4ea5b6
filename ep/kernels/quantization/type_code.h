// The codes by which nodes name element types: those of the graph engine, which torch_npu's exporter writes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "ep/kernels/quantization/quantize.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

enum class TypeCode : int64_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kInt8 = 2,
  kInt32 = 3,
  kUInt8 = 4,
  kBFloat16 = 27,
  kInt4 = 29
};

struct QuantizedCode {
  TypeCode code;
  QuantizedType type;
};

// The type that an attribute names, of those that the operator takes.
inline QuantizedType QuantizedTypeOf(const char* op, const char* attribute, int64_t code,
                                     std::initializer_list<QuantizedCode> taken) {
  std::string codes;
  for (const QuantizedCode& known : taken) {
    if (static_cast<int64_t>(known.code) == code) return known.type;
    codes += (codes.empty() ? "" : " or ") + std::to_string(static_cast<int64_t>(known.code)) + " (" +
             NameOf(known.type) + ")";
  }
  Fail(ErrorCode::kInvalidArgument, "[", op, "] expected ", attribute, " to be the type code ", codes, ", got ", code);
}

}  // namespace npu
