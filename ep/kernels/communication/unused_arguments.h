// Arguments of the operators that communicate which steer other devices.
#pragma once

#include <string>

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

inline void CheckUnused(const char* op, const Attributes& attributes, const char* name, int64_t allowed) {
  const int64_t given = attributes.Int(name);
  NPU_OP_CHECK(op, given == allowed, "expected ", name, " of ", allowed, " on this device, got ", given);
}

inline void CheckAbsent(const char* op, const Attributes& attributes, const char* name) {
  NPU_OP_CHECK(op, !attributes.Has(name), "expected ", name, " of None on this device, got ", attributes.Int(name));
}

inline void CheckCommMode(const char* op, const Attributes& attributes) {
  const std::string mode = attributes.String("comm_mode", "");
  NPU_OP_CHECK(op, mode.empty() || mode == "aiv" || mode == "ai_cpu", "expected comm_mode 'ai_cpu' or 'aiv', got '",
               Printable(mode), "'");
}

inline void CheckNoTensor(const char* op, OpContext& ctx, size_t input, const char* name) {
  NPU_OP_CHECK(op, !ctx.Input(input), "expected no ", name, " on this device, got one");
}

}  // namespace npu
