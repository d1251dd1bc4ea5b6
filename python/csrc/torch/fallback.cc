#include "python/csrc/torch/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>

#include "ep/runtime/environment.h"
#include "ep/runtime/log.h"
#include "python/csrc/torch/cpu_call.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/streams.h"

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

// The CPU draws from a generator that the device's seeds, so that the numbers depend on torch.npu.manual_seed and on a
// generator that was passed.
void SeedFromDevice(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& parameters = op.schema().arguments();
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(parameters.size());
  const auto on_device = std::find_if(arguments, stack.end(), [](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_privateuseone();
  });
  if (on_device == stack.end()) return;
  const int device = on_device->toTensor().device().index();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name() != "generator") continue;
    c10::IValue& generator = arguments[static_cast<std::ptrdiff_t>(i)];
    const auto& source =
        SourceOf(generator.isNone() ? std::optional<at::Generator>() : generator.toGenerator(), device);
    generator = at::detail::createCPUGenerator(DrawSeed(source, CurrentStream(device)));
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
  SeedFromDevice(op, *stack);
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
