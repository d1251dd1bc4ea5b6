// Arguments of the operators that communicate which steer other devices.
#pragma once

#include <string>

#include "ep/runtime/kernel_api.h"

namespace npu {

inline void CheckUnused(const char* op, const Attributes& attributes, const char* name, int64_t allowed) {
  const int64_t given = attributes.Int(name);
  NPU_CHECK(given == allowed, "[", op, "] expected ", name, " of ", allowed, " on this device, got ", given);
}

inline void CheckAbsent(const char* op, const Attributes& attributes, const char* name) {
  NPU_CHECK(!attributes.Has(name), "[", op, "] expected ", name, " of None on this device, got ", attributes.Int(name));
}

inline void CheckCommMode(const char* op, const Attributes& attributes) {
  const std::string mode = attributes.String("comm_mode", "");
  NPU_CHECK(mode.empty() || mode == "aiv" || mode == "ai_cpu", "[", op, "] expected comm_mode 'ai_cpu' or 'aiv', got '",
            Printable(mode), "'");
}

inline void CheckNoTensor(const char* op, OpContext& ctx, size_t input, const char* name) {
  NPU_CHECK(!ctx.Input(input), "[", op, "] expected no ", name, " on this device, got one");
}

}  // namespace npu
