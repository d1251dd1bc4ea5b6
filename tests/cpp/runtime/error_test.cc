#include "ep/runtime/error.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "ep/runtime/dtype.h"
#include "ep/runtime/tensor.h"

namespace npu {
namespace {

TEST_CASE("an error message is valid UTF-8 whatever it quotes") {
  CHECK(Printable("expected 'BSH', got 'größe \xE2\x82\xAC \xF0\x9F\x98\x80'\n") ==
        "expected 'BSH', got 'größe \xE2\x82\xAC \xF0\x9F\x98\x80'\n");
  CHECK(Printable("a\xFFz") == "a\\xffz");
  CHECK(Printable(std::string("a\0b\x1B[31m", 8)) == "a\\x00b\\x1b[31m");
  CHECK(Printable("cut \xE2\x82") == "cut \\xe2\\x82");
  CHECK(Printable("\xC0\xAF") == "\\xc0\\xaf");                    // an overlong slash
  CHECK(Printable("\xED\xA0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(Printable("\xF4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond Unicode
  CHECK(Printable("") == "");
}

TEST_CASE("an error carries the readable form") {
  try {
    Fail(ErrorCode::kInvalidArgument, "got '\xFF'");
    FAIL("expected an error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "got '\\xff'");
    CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("a message prints each of its parts as a stream does") {
  const std::string text = "text";
  char own[8] = "own";
  const DTypeSet* none = nullptr;
  enum Plain { kTwo = 2 };
  CHECK(Concat("a ", text, ' ', std::string("b"), std::string_view(" c "), own) == "a text b c own");
  CHECK(Concat(int64_t{INT64_MIN}, " ", uint64_t{UINT64_MAX}, " ", int16_t{-3}, " ", uint8_t{'x'}, " ", true) ==
        "-9223372036854775808 18446744073709551615 -3 x 1");
  CHECK(Concat(0.1f, " ", 1e300, " ", -0.0, " ", kTwo, " ", static_cast<const void*>(none)) == "0.1 1e+300 -0 2 0");
  CHECK(Concat(Shape{2, 3}) == "[2, 3]");
  CHECK(Concat() == "");
}

TEST_CASE("a check throws what its message says only if it fails") {
  int built = 0;
  const auto count = [&built] { return ++built; };
  NPU_CHECK(true, "built ", count());
  CHECK(built == 0);
  CHECK_THROWS_WITH_AS([&] { NPU_CHECK(built > 0, "[op] expected ", Shape{1}, ", got ", count()); }(),
                       "[op] expected [1], got 1", Error);
}

TEST_CASE("a JSON string escapes quotes, backslashes and line ends, and shows other bytes") {
  CHECK(JsonString("a \"b\" c:\\d\n\te") == R"("a \"b\" c:\\d\n\te")");
  CHECK(JsonString("\x1B\xFF") == R"("\\x1b\\xff")");
}

}  // namespace
}  // namespace npu
