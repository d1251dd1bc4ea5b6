#include "python/csrc/torch/fallback.h"

#include <torch/library.h>

#include <mutex>

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
    NPU_LOG(kWarning, "[", op, "] has no NPU kernel for these arguments: it runs on the CPU, with copies; ",
            "onnxruntime_npu.torch_device.fallback_counts() counts such calls");
  } else {
    NPU_LOG(kDebug, "[", op, "] runs on the CPU");
  }
}

}  // namespace

void FallBackToCpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::OperatorName& name = op.operator_name();
  Count(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  CheckOneDevice(op, *stack);
  if (WidensHalves(op, *stack)) {
    CallWidened(op, stack);
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
