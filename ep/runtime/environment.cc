#include "ep/runtime/environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "ep/runtime/error.h"

namespace npu {
namespace {

// User space of a 64-bit machine: a larger limit can only be a typo.
constexpr size_t kAddressableBytes = sizeof(void*) == 8 ? size_t{1} << 47 : SIZE_MAX;

[[noreturn]] void Reject(const char* name, const std::string& value, const std::string& expected) {
  Fail(ErrorCode::kInvalidArgument, "environment variable ", name, ": expected ", expected, ", got '", value, "'");
}

std::optional<std::string> Get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

template <class T>
bool ParseWhole(const char* begin, const char* end, T& out) {
  const auto [stop, error] = std::from_chars(begin, end, out);
  return begin != end && error == std::errc() && stop == end;
}

}  // namespace

int ParseCount(const char* name, const std::string& value, int max) {
  int count = 0;
  if (!ParseWhole(value.data(), value.data() + value.size(), count) || count < 1 || count > max)
    Reject(name, value, Concat("an integer from 1 to ", max));
  return count;
}

size_t ParseBytes(const char* name, const std::string& value) {
  static constexpr const char* kExpected =
      "a positive number of bytes, optionally with a suffix K, M or G (such as 4G), at most 128 TiB";
  int shift = 0;
  const char* end = value.data() + value.size();
  if (!value.empty()) {
    switch (value.back()) {
      case 'K':
      case 'k':
        shift = 10;
        break;
      case 'M':
      case 'm':
        shift = 20;
        break;
      case 'G':
      case 'g':
        shift = 30;
        break;
      default:
        break;
    }
    if (shift != 0) --end;
  }
  uint64_t number = 0;
  if (!ParseWhole(value.data(), end, number) || number == 0 || number > (kAddressableBytes >> shift))
    Reject(name, value, kExpected);
  return static_cast<size_t>(number) << shift;
}

bool ParseSwitch(const char* name, const std::string& value) {
  if (value == "1") return true;
  if (value != "0") Reject(name, value, "0 or 1");
  return false;
}

LogLevel ParseLogLevel(const char* name, const std::string& value) {
  if (value == "error") return LogLevel::kError;
  if (value == "warning") return LogLevel::kWarning;
  if (value == "info") return LogLevel::kInfo;
  if (value != "debug") Reject(name, value, "error, warning, info or debug");
  return LogLevel::kDebug;
}

Isa ParseIsa(const char* name, const std::string& value) {
  std::string expected;
  for (Isa isa : LevelsOfArchitecture()) {
    if (value == NameOf(isa)) return isa;
    if (!expected.empty()) expected += isa == Isa::kPortable ? " or " : ", ";
    expected += NameOf(isa);
  }
  Reject(name, value, expected);
}

Generation ParseGeneration(const char* name, const std::string& value) {
  if (value == "older") return Generation::kOlder;
  if (value != "newest") Reject(name, value, "older or newest");
  return Generation::kNewest;
}

std::optional<std::string> BackendNameFromEnvironment() { return Get("ORT_NPU_BACKEND"); }

int DeviceCountFromEnvironment() {
  const auto value = Get("ORT_NPU_DEVICE_COUNT");
  return value ? ParseCount("ORT_NPU_DEVICE_COUNT", *value, kMaxDevices) : 1;
}

std::optional<size_t> MemoryLimitFromEnvironment() {
  const auto value = Get("ORT_NPU_MEMORY_LIMIT");
  if (!value) return std::nullopt;
  return ParseBytes("ORT_NPU_MEMORY_LIMIT", *value);
}

std::optional<std::string> DeviceNameFromEnvironment() { return Get("ORT_NPU_DEVICE_NAME"); }

std::optional<int> NumThreadsFromEnvironment() {
  const auto value = Get("ORT_NPU_NUM_THREADS");
  if (!value) return std::nullopt;
  return ParseCount("ORT_NPU_NUM_THREADS", *value, kMaxThreads);
}

std::optional<Isa> IsaFromEnvironment() {
  const auto value = Get("ORT_NPU_ISA");
  if (!value) return std::nullopt;
  return ParseIsa("ORT_NPU_ISA", *value);
}

bool Float16TilesAreTriedFromEnvironment() {
  const auto value = Get("ORT_NPU_AMX_FP16");
  return value && ParseSwitch("ORT_NPU_AMX_FP16", *value);
}

bool LaunchBlockingFromEnvironment() {
  const auto value = Get("ORT_NPU_LAUNCH_BLOCKING");
  return value && ParseSwitch("ORT_NPU_LAUNCH_BLOCKING", *value);
}

LogLevel LogLevelFromEnvironment() {
  const auto value = Get("ORT_NPU_LOG");
  return value ? ParseLogLevel("ORT_NPU_LOG", *value) : LogLevel::kWarning;
}

bool CpuFallbackDisabledFromEnvironment() {
  const auto value = Get("TORCH_NPU_FALLBACK_CPU_DISABLE");
  return value && ParseSwitch("TORCH_NPU_FALLBACK_CPU_DISABLE", *value);
}

bool FaultInjectionFromEnvironment() {
  const auto value = Get("ORT_NPU_FAULT_INJECTION");
  return value && ParseSwitch("ORT_NPU_FAULT_INJECTION", *value);
}

bool GuardMemoryFromEnvironment() {
  const auto value = Get("ORT_NPU_GUARD_MEMORY");
  return value && ParseSwitch("ORT_NPU_GUARD_MEMORY", *value);
}

std::optional<Generation> GenerationFromEnvironment() {
  const auto value = Get("ORT_NPU_GENERATION");
  if (!value) return std::nullopt;
  return ParseGeneration("ORT_NPU_GENERATION", *value);
}

}  // namespace npu
