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

// The element type that an attribute names, of those that the operator takes.
inline DType ElementTypeOf(const char* op, const char* attribute, int64_t code, std::initializer_list<TypeCode> taken) {
  const auto type_of = [](TypeCode known) {
    switch (known) {
      case TypeCode::kFloat32:
        return DType::kFloat32;
      case TypeCode::kFloat16:
        return DType::kFloat16;
      case TypeCode::kInt8:
        return DType::kInt8;
      case TypeCode::kInt32:
        return DType::kInt32;
      case TypeCode::kUInt8:
        return DType::kUInt8;
      case TypeCode::kBFloat16:
        return DType::kBFloat16;
      case TypeCode::kInt4:
        return DType::kInt4;
    }
    return DType::kUndefined;
  };
  std::string codes;
  for (const TypeCode& known : taken) {
    if (static_cast<int64_t>(known) == code) return type_of(known);
    const bool last = &known + 1 == taken.end();
    codes += (codes.empty() ? ""
              : last        ? " or "
                            : ", ") +
             std::to_string(static_cast<int64_t>(known)) + " (" + NameOf(type_of(known)) + ")";
  }
  Fail(ErrorCode::kInvalidArgument, "[", op, "] expected ", attribute, " to be the type code ", codes, ", got ", code);
}

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
