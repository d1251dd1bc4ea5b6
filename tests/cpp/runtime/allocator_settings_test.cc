#include "ep/runtime/allocator_settings.h"

#include <doctest/doctest.h>

#include <string>

#include "ep/runtime/error.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string Complaint(const std::string& text) {
  try {
    ParseAllocatorSettings("CONF", text);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kInvalidArgument);
    return e.what();
  }
  return "";
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("settings: every key is parsed, whitespace is ignored") {
  const AllocatorSettings s = ParseAllocatorSettings(
      "CONF",
      " max_split_size_mb: 64, garbage_collection_threshold:0.5,large_segment_size_mb:40, "
      "per_process_memory_fraction:0.25,max_non_split_rounding_mb:100,page_size:1g,base_addr_aligned_kb:16,"
      "pinned_use_background_threads:True,multi_stream_lazy_reclaim:False");
  CHECK(s.max_split_size == 64 * kMiB);
  CHECK(s.garbage_collection_threshold == 0.5);
  CHECK(s.large_segment_size == 40 * kMiB);
  CHECK(s.memory_fraction == 0.25);
  CHECK(s.max_non_split_rounding == 100 * kMiB);
  CHECK_FALSE(s.expandable_segments);
  CHECK(ParseAllocatorSettings("CONF", "expandable_segments:True").expandable_segments);
  CHECK(ParseAllocatorSettings("CONF", "").max_split_size == SIZE_MAX);
}

TEST_CASE("settings: errors name the wrong value and what is allowed") {
  CHECK(Has(Complaint("max_split_size:64"), "unknown key 'max_split_size'; expected one of"));
  CHECK(Has(Complaint("max_split_size:64"), "max_split_size_mb"));
  CHECK(Has(Complaint("max_split_size_mb:20"), "max_split_size_mb:an integer from 21"));
  CHECK(Has(Complaint("max_split_size_mb:-1"), "got '-1'"));
  CHECK(Has(Complaint("max_split_size_mb:99999999999999999999"), "an integer"));
  CHECK(Has(Complaint("garbage_collection_threshold:1.0"), "a number between 0 and 1"));
  CHECK(Has(Complaint("garbage_collection_threshold:nan"), "a number"));
  CHECK(Has(Complaint("expandable_segments:yes"), "True or False"));
  CHECK(Has(Complaint("expandable_segments:True,max_split_size_mb:64"), "cannot be combined with max_split_size_mb"));
  CHECK(Has(Complaint("garbage_collection_threshold:0.5,expandable_segments:True"), "cannot be combined"));
  CHECK(Has(Complaint("page_size:2m"), "1g"));
  CHECK(Has(Complaint("max_split_size_mb"), "key:value"));
  CHECK(Has(Complaint(":64"), "key:value"));
  CHECK(Has(Complaint("max_split_size_mb:64,,page_size:1g"), "key:value"));
  for (const char* bad : {"3", "0", "128", "[256:1", "[256]", "[3:1]", "[a:1]", "[256:1,>:5]", ""})
    CHECK(Has(Complaint(std::string("roundup_power2_divisions:") + bad), "a power of two from 1 to 64, or a list"));
}

TEST_CASE("settings: sizes are rounded to steps between powers of two") {
  const AllocatorSettings four = ParseAllocatorSettings("CONF", "roundup_power2_divisions:4");
  CHECK(four.RoundSize(1) == 512);
  CHECK(four.RoundSize(1200) == 1536);
  CHECK(four.RoundSize(4 * kMiB) == 4 * kMiB);
  CHECK(four.RoundSize(4 * kMiB + 1) == 5 * kMiB);
  CHECK(four.RoundSize(7 * kMiB + 1) == 8 * kMiB);
  const AllocatorSettings listed = ParseAllocatorSettings("CONF", "roundup_power2_divisions:[4:2,16:1,>:8]");
  CHECK(listed.RoundSize(4 * kMiB + 1) == 6 * kMiB);
  CHECK(listed.RoundSize(17 * kMiB) == 32 * kMiB);
  CHECK(listed.RoundSize(33 * kMiB) == 36 * kMiB);
  CHECK(AllocatorSettings{}.RoundSize(4 * kMiB + 1) == 4 * kMiB + 512);
}

}  // namespace npu
