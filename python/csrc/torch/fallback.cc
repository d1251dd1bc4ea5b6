#include "python/csrc/torch/fallback.h"

#include <torch/library.h>

#include <mutex>

#include "ep/runtime/environment.h"
#include "ep/runtime/log.h"
#include "python/csrc/torch/cpu_call.h"

namespace npu::aten {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> reported;  // operators that a warning has named
};

Counts& GetCounts() {
  static Counts& counts = *new Counts;
  return counts;
}

void Count(const std::string& op) {
  Counts& counts = GetCounts();
  bool first;
  {
    std::lock_guard lock(counts.mutex);
    ++counts.calls[op];
    first = ++counts.reported[op] == 1;
  }
  if (first) {
    NPU_LOG(kWarning, "[", op,
            "] has no NPU kernel for these arguments and will fall back to run on the CPU, with copies; ",
            "onnxruntime_npu.torch_device.fallback_counts() counts such calls");
  } else {
    NPU_LOG(kDebug, "[", op, "] runs on the CPU");
  }
}

}  // namespace

void FallBackToCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const bool disabled = CpuFallbackDisabledFromEnvironment();
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(!disabled, "[", name,
                              "] has no NPU kernel for these arguments, and TORCH_NPU_FALLBACK_CPU_DISABLE=1 forbids "
                              "to run it on the CPU: unset the variable, or move its arguments to the CPU");
  Count(name);
  CheckOneDevice(op, *stack);
  if (UpcastsHalves(op, *stack)) {
    CallUpcast(op, stack);
  } else {
    at::native::cpu_fallback(op, stack);
  }
}

std::map<std::string, int64_t> FallbackCounts() {
  Counts& counts = GetCounts();
  std::lock_guard lock(counts.mutex);
  return counts.calls;
}

void ResetFallbackCounts() {
  Counts& counts = GetCounts();
  std::lock_guard lock(counts.mutex);
  counts.calls.clear();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&FallBackToCpu>()); }

}  // namespace npu::aten
