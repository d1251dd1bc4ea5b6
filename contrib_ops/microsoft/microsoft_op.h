// Definitions of operators of com.microsoft.
#pragma once

#include <utility>

#include "ep/kernels/onnx_def.h"

namespace npu {

inline OpDef Microsoft(OpDef def) {
  def.domain = "com.microsoft";
  return def;
}

}  // namespace npu
