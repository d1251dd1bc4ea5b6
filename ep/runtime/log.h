// A minimal logger on stderr; ORT_NPU_LOG chooses the level (default: warning).
#pragma once

#include <string>

#include "ep/runtime/error.h"

namespace npu {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

bool LogEnabled(LogLevel level);
void Log(LogLevel level, const std::string& message);

}  // namespace npu

// NPU_LOG(kWarning, "stream ", id, " …"): the message is built only when it is shown.
#define NPU_LOG(level, ...)                                                                                        \
  do {                                                                                                             \
    if (::npu::LogEnabled(::npu::LogLevel::level)) ::npu::Log(::npu::LogLevel::level, ::npu::Concat(__VA_ARGS__)); \
  } while (0)
