// Errors of the runtime and of kernels. Kernels throw; every ABI boundary (ORT's C API, Python)
// catches and translates, so that no exception crosses it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace npu {

enum class ErrorCode {
  kInvalidArgument,  // the caller's fault: shapes, dtypes, attributes, indices
  kUnsupported,      // valid, but not implemented
  kOutOfMemory,
  kDeviceError,  // an asynchronous kernel failed; surfaces at the next synchronize
  kInternal,
};

// The text with control characters, and bytes that are not valid UTF-8, escaped as \xNN. Messages quote names and
// attributes of models, which may contain any bytes; Python rejects a message that is not UTF-8.
std::string Printable(const std::string& text);

// Printable(text) as a JSON string, with its quotes.
std::string JsonString(const std::string& text);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

template <class... Args>
std::string Concat(Args&&... args) {
  std::ostringstream out;
  (out << ... << std::forward<Args>(args));
  return out.str();
}

template <class... Args>
[[noreturn]] void Fail(ErrorCode code, Args&&... args) {
  throw Error(code, Concat(std::forward<Args>(args)...));
}

}  // namespace npu

// A check of the caller's arguments. The message is only built when the check fails.
#define NPU_CHECK(condition, ...)                                   \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::npu::Fail(::npu::ErrorCode::kInvalidArgument, __VA_ARGS__); \
  } while (0)
