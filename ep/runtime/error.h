// Errors of the runtime and of kernels. Kernels throw; every ABI boundary (ORT's C API, Python)
// catches and translates, so that no exception crosses it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>

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

// A part of a message: text, a number, or whatever a stream prints, which it refers to until the message is built.
// Printing is compiled once here, not for each list of types that a message is made of: there are thousands, and they
// were a fifth of a kernel library's code.
class MessagePart {
 public:
  MessagePart(const char* text) : text_(text), print_(&PrintText) {}  // NOLINT: a message is a list of values
  template <class T>
  MessagePart(const T& value) {  // NOLINT
    // Numbers are copied: a variable whose address is taken, even by a message that is never built, stays in memory.
    if constexpr (std::is_floating_point_v<T>) {
      real_ = static_cast<double>(value);
      print_ = &PrintReal;
    } else if constexpr (!std::is_integral_v<T> || (sizeof(T) == 1 && !std::is_same_v<T, bool>)) {
      other_ = &value;
      print_ = [](const MessagePart& part, std::ostream& out) { out << *static_cast<const T*>(part.other_); };
    } else if constexpr (std::is_signed_v<T>) {
      signed_ = value;
      print_ = &PrintSigned;
    } else {
      unsigned_ = value;
      print_ = &PrintUnsigned;
    }
  }
  MessagePart(const std::string& text) : other_(&text), print_(&PrintString) {}  // NOLINT

  void Print(std::ostream& out) const { print_(*this, out); }

 private:
  static void PrintText(const MessagePart& part, std::ostream& out);
  static void PrintString(const MessagePart& part, std::ostream& out);
  static void PrintSigned(const MessagePart& part, std::ostream& out);
  static void PrintUnsigned(const MessagePart& part, std::ostream& out);
  static void PrintReal(const MessagePart& part, std::ostream& out);

  union {
    const char* text_;
    const void* other_;
    int64_t signed_;
    uint64_t unsigned_;
    double real_;
  };
  void (*print_)(const MessagePart& part, std::ostream& out);
};

std::string Concatenated(std::initializer_list<MessagePart> parts);
[[noreturn, gnu::cold]] void FailWith(ErrorCode code, std::initializer_list<MessagePart> parts);

template <class... Args>
std::string Concat(const Args&... args) {
  return Concatenated({MessagePart(args)...});
}

template <class... Args>
[[noreturn]] void Fail(ErrorCode code, const Args&... args) {
  FailWith(code, {MessagePart(args)...});
}

}  // namespace npu

// A check of the caller's arguments. The message is only built when the check fails.
#define NPU_CHECK(condition, ...)                                         \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::npu::FailWith(::npu::ErrorCode::kInvalidArgument, {__VA_ARGS__}); \
  } while (0)
