#include "ep/runtime/log.h"

#include <cstdio>

#include "ep/runtime/environment.h"

namespace npu {
namespace {

LogLevel Threshold() {
  static const LogLevel level = [] {
    try {
      return LogLevelFromEnvironment();
    } catch (const Error&) {
      return LogLevel::kWarning;  // Runtime::Instance() reports the bad value; logging must not throw
    }
  }();
  return level;
}

}  // namespace

bool LogEnabled(LogLevel level) { return level <= Threshold(); }

void Log(LogLevel level, const std::string& message) {
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  const std::string line = Concat("[onnxruntime-npu ", kNames[static_cast<int>(level)], "] ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);  // one write, so that lines of several threads do not mix
}

}  // namespace npu
