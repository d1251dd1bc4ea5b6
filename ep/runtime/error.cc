#include "ep/runtime/error.h"

#include <cstddef>
#include <cstdint>
#include <sstream>

namespace npu {
namespace {

// Bytes of the UTF-8 sequence that starts at `at`, 0 if none does.
std::size_t SequenceLength(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(at + 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool too_large = first == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

}  // namespace

std::string Printable(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = SequenceLength(text, at);
    if (length == 0 || IsControl(text[at])) {
      const auto byte = static_cast<uint8_t>(text[at++]);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out.append(text, at, length);
      at += length;
    }
  }
  return out;
}

std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : Printable(text)) {
    if (c == '\n' || c == '\t') {  // Printable leaves no other control characters
      out += c == '\n' ? "\\n" : "\\t";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

Error::Error(ErrorCode code, const std::string& message) : std::runtime_error(Printable(message)), code_(code) {}

void MessagePart::PrintText(const MessagePart& part, std::ostream& out) { out << part.text_; }
void MessagePart::PrintString(const MessagePart& part, std::ostream& out) {
  out << *static_cast<const std::string*>(part.other_);
}
void MessagePart::PrintSigned(const MessagePart& part, std::ostream& out) { out << part.signed_; }
void MessagePart::PrintUnsigned(const MessagePart& part, std::ostream& out) { out << part.unsigned_; }
void MessagePart::PrintReal(const MessagePart& part, std::ostream& out) { out << part.real_; }

std::string Concatenated(std::initializer_list<MessagePart> parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) part.Print(out);
  return out.str();
}

void FailWith(ErrorCode code, std::initializer_list<MessagePart> parts) { throw Error(code, Concatenated(parts)); }

}  // namespace npu
