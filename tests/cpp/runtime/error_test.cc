#include "ep/runtime/error.h"

#include <doctest/doctest.h>

#include <string>

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

TEST_CASE("a JSON string escapes quotes, backslashes and line ends, and shows other bytes") {
  CHECK(JsonString("a \"b\" c:\\d\n\te") == R"("a \"b\" c:\\d\n\te")");
  CHECK(JsonString("\x1B\xFF") == R"("\\x1b\\xff")");
}

}  // namespace
}  // namespace npu
