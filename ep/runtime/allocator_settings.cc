#include "ep/runtime/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/log.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRounding = 512;
constexpr uint64_t kMaxMegabytes = uint64_t{1} << 27;   // 128 TiB
constexpr int kFirstDivisionBit = 20, kDivisions = 16;  // of 1 MiB, 2 MiB, … 32 GiB and above

// One "key:value" of the variable; the value parsers are methods, so that their errors name both.
class Option {
 public:
  Option(const std::string& variable, std::string key, std::string value)
      : variable_(variable), key_(std::move(key)), value_(std::move(value)) {}

  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }

  [[noreturn]] void Reject(const std::string& expected) const {
    Fail(ErrorCode::kInvalidArgument, variable_, ": expected ", key_, ":", expected, ", got '", value_, "'");
  }
  bool Bool() const {
    if (value_ == "True" || value_ == "true") return true;
    if (value_ != "False" && value_ != "false") Reject("True or False");
    return false;
  }
  uint64_t Integer(uint64_t low, uint64_t high) const {
    const auto number = ParseInteger(value_);
    if (number < 0 || static_cast<uint64_t>(number) < low || static_cast<uint64_t>(number) > high)
      Reject(Concat("an integer from ", low, " to ", high));
    return static_cast<uint64_t>(number);
  }
  // Strictly above `low`, up to `high`.
  double Real(double low, double high, bool high_allowed) const {
    double number = 0;
    const auto [stop, error] = std::from_chars(value_.data(), value_.data() + value_.size(), number);
    const bool whole = !value_.empty() && error == std::errc() && stop == value_.data() + value_.size();
    if (!whole || !(number > low) || !(number < high || (high_allowed && number == high)))
      Reject(Concat("a number between ", low, " and ", high, high_allowed ? " (which is allowed)" : ""));
    return number;
  }
  // "N", or "[256:1,512:2,>:4]": sizes in MiB and the number of steps between two powers of two from there on.
  std::vector<uint64_t> Divisions() const {
    static constexpr const char* kExpected =
        "a power of two from 1 to 64, or a list such as [256:1,512:2,>:4] of sizes in MiB and such numbers";
    const auto division = [&](const std::string& text) {
      const int64_t n = ParseInteger(text);
      if (n < 1 || n > 64 || !std::has_single_bit(static_cast<uint64_t>(n))) Reject(kExpected);
      return static_cast<uint64_t>(n);
    };
    if (value_.empty() || value_.front() != '[') return std::vector<uint64_t>(kDivisions, division(value_));
    if (value_.back() != ']') Reject(kExpected);
    std::vector<uint64_t> out(kDivisions, 1);
    size_t from = 0;
    for (const std::string& item : Split(value_.substr(1, value_.size() - 2), ',')) {
      const size_t colon = item.find(':');
      if (colon == std::string::npos) Reject(kExpected);
      const std::string size = item.substr(0, colon);
      const uint64_t steps = division(item.substr(colon + 1));
      if (size != ">") {
        const int64_t megabytes = ParseInteger(size);
        if (megabytes < 1 || !std::has_single_bit(static_cast<uint64_t>(megabytes))) Reject(kExpected);
        from = std::min<size_t>(std::bit_width(static_cast<uint64_t>(megabytes)) - 1, kDivisions - 1);
        std::fill(out.begin() + static_cast<ptrdiff_t>(from), out.end(), steps);
      } else {
        std::fill(out.begin() + static_cast<ptrdiff_t>(std::min<size_t>(from + 1, kDivisions)), out.end(), steps);
      }
    }
    return out;
  }

  // Splits at `separator` outside of brackets.
  static std::vector<std::string> Split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char c : text) {
      depth += (c == '[') - (c == ']');
      if (c == separator && depth == 0) {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    return parts;
  }

 private:
  static int64_t ParseInteger(const std::string& text) {  // -1: not a valid integer
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return !text.empty() && error == std::errc() && stop == text.data() + text.size() ? number : -1;
  }

  const std::string& variable_;
  const std::string key_, value_;
};

void SayThatPinnedBlocksDoNotExpand() {
  NPU_LOG(kWarning,
          "pin_memory_expandable_segments changes nothing: the host NPU does not support this feature, its pinned "
          "blocks have no segments");
}

using Setter = void (*)(const Option&, AllocatorSettings&);

// Every key that torch_npu accepts. Those about Ascend's pages, pinned memory and driver locks have no effect on a host
// NPU; they are validated, so that a configuration is valid on both or on neither.
const std::map<std::string, Setter>& Setters() {
  static constexpr Setter check_bool = [](const Option& o, AllocatorSettings&) { o.Bool(); };
  static constexpr Setter check_megabytes = [](const Option& o, AllocatorSettings&) { o.Integer(0, kMaxMegabytes); };
  static const std::map<std::string, Setter> setters = {
      {"max_split_size_mb",
       [](const Option& o, AllocatorSettings& s) { s.max_split_size = o.Integer(21, kMaxMegabytes) * kMiB; }},
      {"max_non_split_rounding_mb",
       [](const Option& o, AllocatorSettings& s) { s.max_non_split_rounding = o.Integer(21, kMaxMegabytes) * kMiB; }},
      {"garbage_collection_threshold",
       [](const Option& o, AllocatorSettings& s) { s.garbage_collection_threshold = o.Real(0, 1, false); }},
      {"expandable_segments", [](const Option& o, AllocatorSettings& s) { s.expandable_segments = o.Bool(); }},
      {"large_segment_size_mb",
       [](const Option& o, AllocatorSettings& s) { s.large_segment_size = o.Integer(20, 512) * kMiB; }},
      {"segment_size_mb",
       [](const Option& o, AllocatorSettings& s) { s.large_segment_size = o.Integer(20, 512) * kMiB; }},
      {"per_process_memory_fraction",
       [](const Option& o, AllocatorSettings& s) { s.memory_fraction = o.Real(0, 1, true); }},
      {"roundup_power2_divisions",
       [](const Option& o, AllocatorSettings& s) { s.roundup_power2_divisions = o.Divisions(); }},
      {"base_addr_aligned_kb", [](const Option& o, AllocatorSettings&) { o.Integer(0, 16); }},
      {"page_size",
       [](const Option& o, AllocatorSettings&) {
         if (o.value() != "1g") o.Reject("1g");
       }},
      {"pinned_max_round_threshold_mb", check_megabytes},
      {"pinned_max_cached_size_mb", check_megabytes},
      {"pinned_reserve_segment_size_mb", check_megabytes},
      {"pinned_use_background_threads", check_bool},
      {"pin_memory_expandable_segments",
       [](const Option& o, AllocatorSettings&) {
         static std::once_flag said;  // each device reads the settings
         if (o.Bool()) std::call_once(said, SayThatPinnedBlocksDoNotExpand);
       }},
      {"pinned_mem_register", check_bool},
      {"multi_stream_lazy_reclaim", check_bool},
      {"release_lock_on_npumalloc", check_bool},
      {"throw_on_npumalloc_oom", check_bool},
  };
  return setters;
}

std::string KnownKeys() {
  std::string names;
  for (const auto& [name, setter] : Setters()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

size_t AllocatorSettings::RoundSize(size_t bytes) const {
  const size_t multiple = (bytes + kRounding - 1) / kRounding * kRounding;
  if (roundup_power2_divisions.empty() || bytes <= kRounding) return multiple;
  const int bit = static_cast<int>(std::bit_width(bytes)) - 1;
  const auto index = static_cast<size_t>(std::clamp(bit - kFirstDivisionBit, 0, kDivisions - 1));
  const size_t power = size_t{1} << bit, step = power / roundup_power2_divisions[index];
  if (step < kRounding || bytes == power || bytes > SIZE_MAX - step) return multiple;
  return (bytes + step - 1) / step * step;
}

AllocatorSettings ParseAllocatorSettings(const std::string& variable, const std::string& text) {
  AllocatorSettings settings;
  std::string compact;
  std::copy_if(text.begin(), text.end(), std::back_inserter(compact), [](char c) { return c != ' ' && c != '\t'; });
  if (compact.empty()) return settings;
  std::vector<std::string> given;
  for (const std::string& item : Option::Split(compact, ',')) {
    const size_t colon = item.find(':');
    NPU_CHECK(colon != std::string::npos && colon > 0, variable,
              ": expected key:value pairs separated by commas, got '", item, "' in '", text, "'");
    const Option option(variable, item.substr(0, colon), item.substr(colon + 1));
    const auto setter = Setters().find(option.key());
    NPU_CHECK(setter != Setters().end(), variable, ": unknown key '", option.key(), "'; expected one of ", KnownKeys());
    setter->second(option, settings);
    given.push_back(option.key());
  }
  for (const char* other : {"max_split_size_mb", "garbage_collection_threshold"})
    NPU_CHECK(!settings.expandable_segments || std::find(given.begin(), given.end(), other) == given.end(), variable,
              ": expandable_segments:True cannot be combined with ", other, "; drop one of them");
  return settings;
}

AllocatorSettings AllocatorSettingsFromEnvironment() {
  const char* own = std::getenv("PYTORCH_NPU_ALLOC_CONF");
  const char* generic = std::getenv("PYTORCH_ALLOC_CONF");
  NPU_CHECK(own == nullptr || generic == nullptr,
            "PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set: unset one of them");
  AllocatorSettings settings;
  if (own != nullptr) settings = ParseAllocatorSettings("PYTORCH_NPU_ALLOC_CONF", own);
  if (generic != nullptr) settings = ParseAllocatorSettings("PYTORCH_ALLOC_CONF", generic);
  const char* uncached = std::getenv("PYTORCH_NO_NPU_MEMORY_CACHING");
  settings.caching =
      uncached == nullptr || *uncached == '\0' || !ParseSwitch("PYTORCH_NO_NPU_MEMORY_CACHING", uncached);
  return settings;
}

}  // namespace npu
