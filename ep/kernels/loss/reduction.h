// What becomes of the losses of all positions.
#pragma once

#include <string>

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

enum class Reduction { kNone, kSum, kMean };

// The attribute `reduction`.
inline Reduction ReadReduction(const char* op, const Attributes& attributes) {
  const std::string name = attributes.String("reduction");
  if (name == "none") return Reduction::kNone;
  if (name == "sum") return Reduction::kSum;
  NPU_OP_CHECK(op, name == "mean", "expected reduction mean, sum or none, got '", Printable(name), "'");
  return Reduction::kMean;
}

}  // namespace npu
