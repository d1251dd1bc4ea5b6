// Messages through ORT's logger, subject to its severity filter.
#pragma once

#include <source_location>
#include <string>

#include "ep/provider/abi.h"

namespace npu::provider {

inline void Log(const Api& api, const OrtLogger* logger, OrtLoggingLevel level, const std::string& message,
                std::source_location where = std::source_location::current()) {
  if (logger == nullptr) return;
  OrtLoggingLevel threshold = ORT_LOGGING_LEVEL_FATAL;
  if (!api.Succeeded(api.ort.Logger_GetLoggingSeverityLevel(logger, &threshold)) || level < threshold) return;
  api.Succeeded(api.ort.Logger_LogMessage(logger, level, message.c_str(), where.file_name(),
                                          static_cast<int>(where.line()), where.function_name()));
}

}  // namespace npu::provider
