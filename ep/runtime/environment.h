// The environment variables. An unset or empty variable means its default; any other value
// that is not allowed throws Error(kInvalidArgument) naming the variable, the value and what is allowed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ep/runtime/isa.h"
#include "ep/runtime/log.h"

namespace npu {

// Parsers of one value each; `name` is the variable's name, for the message.
int ParseCount(const char* name, const std::string& value, int max);
size_t ParseBytes(const char* name, const std::string& value);
bool ParseSwitch(const char* name, const std::string& value);
LogLevel ParseLogLevel(const char* name, const std::string& value);
Isa ParseIsa(const char* name, const std::string& value);

// The devices whose rule an operator follows that generations of devices define in different ways.
enum class Generation { kOlder, kNewest };
Generation ParseGeneration(const char* name, const std::string& value);

inline constexpr int kMaxDevices = 64;
inline constexpr int kMaxThreads = 1024;

std::optional<std::string> BackendNameFromEnvironment();  // ORT_NPU_BACKEND
int DeviceCountFromEnvironment();                         // ORT_NPU_DEVICE_COUNT, default 1
std::optional<size_t> MemoryLimitFromEnvironment();       // ORT_NPU_MEMORY_LIMIT, bytes per device
std::optional<std::string> DeviceNameFromEnvironment();   // ORT_NPU_DEVICE_NAME
std::optional<int> NumThreadsFromEnvironment();           // ORT_NPU_NUM_THREADS
std::optional<Isa> IsaFromEnvironment();                  // ORT_NPU_ISA
bool Float16TilesAreTriedFromEnvironment();               // ORT_NPU_AMX_FP16, default 0
bool LaunchBlockingFromEnvironment();                     // ORT_NPU_LAUNCH_BLOCKING, default 0
LogLevel LogLevelFromEnvironment();                       // ORT_NPU_LOG, default warning
bool CpuFallbackDisabledFromEnvironment();                // TORCH_NPU_FALLBACK_CPU_DISABLE, default 0
bool FaultInjectionFromEnvironment();                     // ORT_NPU_FAULT_INJECTION, default 0
bool GuardMemoryFromEnvironment();                        // ORT_NPU_GUARD_MEMORY, default 0
std::optional<Generation> GenerationFromEnvironment();    // ORT_NPU_GENERATION; without: as each operator says

}  // namespace npu
