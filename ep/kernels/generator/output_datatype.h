// Generators whose attribute output_datatype says what they generate.
#pragma once

#include <string>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/safe_cast.h"

namespace npu {

inline AttrDef OutputDatatype() { return IntAttribute("output_datatype", static_cast<int64_t>(DType::kFloat32)); }

inline DType ReadOutputDatatype(const Attributes& attributes) {
  return static_cast<DType>(attributes.Int("output_datatype"));
}

// Any number.
inline std::string WhyNotOutputDatatype(const NodeView& node) {
  const int64_t dtype = node.attributes.Int("output_datatype");
  if (dtype > 0 && dtype < 64 && kNumeric.Contains(static_cast<DType>(dtype))) return "";
  return Concat(node.op_type, " of ONNX type ", dtype, " is not implemented");
}

// A value as an element; of integers, without its fraction and as SafeCast says for NaN.
template <class T>
T Generated(double value) {
  if constexpr (std::is_integral_v<T>) {
    return SafeCast<T>(value);
  } else {
    return Rounded<T>(static_cast<ComputeType<T>>(value));
  }
}

}  // namespace npu
