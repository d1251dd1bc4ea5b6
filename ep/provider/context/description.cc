#include "ep/provider/context/description.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace npu::provider {
namespace {

// The first word: another one is for another layout of this text.
constexpr std::string_view kDescriptionFormat = "npu1";

// Words are separated by spaces; a string is its length, ':' and its characters.
class TextWriter {
 public:
  void Word(std::string_view word) {
    if (!text_.empty()) text_ += ' ';
    text_ += word;
  }
  template <class T>
  void Number(T value) {
    char digits[32];
    const auto result = std::to_chars(digits, digits + sizeof digits, value);
    Word({digits, static_cast<size_t>(result.ptr - digits)});
  }
  void String(const std::string& value) { Word(std::to_string(value.size()) + ':' + value); }
  template <class T, class F>
  void List(const std::vector<T>& values, F&& write) {
    Number(values.size());
    for (const T& value : values) write(value);
  }

  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class TextReader {
 public:
  explicit TextReader(std::string_view text) : rest_(text) {}

  std::string_view Word() {
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    if (word.empty()) Refuse();
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  template <class T>
  T Number() {
    const std::string_view word = Word();
    T value{};
    const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
    if (result.ec != std::errc() || result.ptr != word.data() + word.size()) Refuse();
    return value;
  }
  std::string String() {
    size_t length = 0;
    const auto result = std::from_chars(rest_.data(), rest_.data() + rest_.size(), length);
    const size_t begin = static_cast<size_t>(result.ptr - rest_.data()) + 1;
    if (result.ec != std::errc() || begin > rest_.size() || *result.ptr != ':' || length > rest_.size() - begin)
      Refuse();
    std::string value(rest_.substr(begin, length));
    rest_.remove_prefix(begin + length);
    if (!rest_.empty() && rest_.front() != ' ') Refuse();
    rest_.remove_prefix(std::min<size_t>(1, rest_.size()));
    return value;
  }
  template <class F>
  auto List(F&& read) {
    std::vector<decltype(read())> values;
    const auto count = Number<size_t>();
    if (count > rest_.size()) Refuse();  // a word has a character at least
    for (size_t i = 0; i < count; ++i) values.push_back(read());
    return values;
  }
  void End() const {
    if (!rest_.empty()) Refuse();
  }

  [[noreturn]] static void Refuse() {
    Fail(ErrorCode::kInvalidArgument, "expected the description of an operator in the attribute notes, as this ",
         "package writes it, got another text");
  }

 private:
  std::string_view rest_;
};

// The words that name the kinds of attributes.
constexpr std::string_view kIntWord = "int", kFloatWord = "float", kStringWord = "string", kIntsWord = "ints",
                           kFloatsWord = "floats", kStringsWord = "strings", kTensorWord = "tensor";

struct AttributeWriter {
  TextWriter& out;

  void operator()(int64_t value) const {
    out.Word(kIntWord);
    out.Number(value);
  }
  void operator()(double value) const {
    out.Word(kFloatWord);
    out.Number(value);
  }
  void operator()(const std::string& value) const {
    out.Word(kStringWord);
    out.String(value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    out.Word(kIntsWord);
    out.List(values, [&](int64_t value) { out.Number(value); });
  }
  void operator()(const std::vector<double>& values) const {
    out.Word(kFloatsWord);
    out.List(values, [&](double value) { out.Number(value); });
  }
  void operator()(const std::vector<std::string>& values) const {
    out.Word(kStringsWord);
    out.List(values, [&](const std::string& value) { out.String(value); });
  }
  void operator()(const TensorAttribute& value) const {
    out.Word(kTensorWord);
    out.String(NameOf(value.dtype));
    out.List(value.shape, [&](int64_t dim) { out.Number(dim); });
    out.List(value.data, [&](unsigned char byte) { out.Number(static_cast<unsigned>(byte)); });
  }
};

TensorAttribute ParseTensor(TextReader& in) {
  TensorAttribute value;
  value.dtype = DTypeFromName(in.String());
  value.shape = in.List([&] { return in.Number<int64_t>(); });
  value.data = in.List([&] { return in.Number<unsigned char>(); });
  int64_t elements = 1;
  for (const int64_t dim : value.shape)
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) TextReader::Refuse();
  if (BytesFor(value.dtype, elements) != value.data.size()) TextReader::Refuse();
  return value;
}

Attributes::Value ParseAttribute(TextReader& in) {
  const std::string_view kind = in.Word();
  if (kind == kIntWord) return in.Number<int64_t>();
  if (kind == kFloatWord) return in.Number<double>();
  if (kind == kStringWord) return in.String();
  if (kind == kIntsWord) return in.List([&] { return in.Number<int64_t>(); });
  if (kind == kFloatsWord) return in.List([&] { return in.Number<double>(); });
  if (kind == kStringsWord) return in.List([&] { return in.String(); });
  if (kind == kTensorWord) return ParseTensor(in);
  TextReader::Refuse();
}

}  // namespace

std::string ToText(const ContextDescription& description) {
  TextWriter out;
  out.Word(kDescriptionFormat);
  out.String(description.domain);
  out.String(description.type);
  out.Number(description.version);
  out.List(description.inputs, [&](int64_t input) { out.Number(input); });
  out.Number(description.attributes.values().size());
  for (const auto& [name, value] : description.attributes.values()) {
    out.String(name);
    std::visit(AttributeWriter{out}, value);
  }
  out.List(description.blocks, [&](const PackedBlock& block) {
    out.Number(block.offset);
    out.Number(block.bytes);
    out.Number(block.checksum);
  });
  return out.Take();
}

ContextDescription ParseDescription(const std::string& text) {
  TextReader in(text);
  if (in.Word() != kDescriptionFormat) TextReader::Refuse();
  ContextDescription out;
  out.domain = in.String();
  out.type = in.String();
  out.version = in.Number<int>();
  out.inputs = in.List([&] { return in.Number<int64_t>(); });
  in.List([&] {
    const std::string name = in.String();
    out.attributes.Set(name, ParseAttribute(in));
    return 0;
  });
  out.blocks = in.List([&] {
    PackedBlock block;
    block.offset = in.Number<uint64_t>();
    block.bytes = in.Number<uint64_t>();
    block.checksum = in.Number<uint64_t>();
    return block;
  });
  in.End();
  return out;
}

}  // namespace npu::provider
