#include "ep/runtime/dtype.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace npu {
namespace {

// The value of a float16, from its definition.
double Value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double v;
  if (exponent == 31) {
    v = mantissa != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    v = std::ldexp(mantissa, -24);
  } else {
    v = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -v : v;
}

uint16_t HalfBits(double v) { return Float16(static_cast<float>(v)).bits; }

}  // namespace

TEST_CASE("every float16 converts to its value and back to itself") {
  int wrong_value = 0, wrong_bits = 0;
  for (uint32_t b = 0; b < 65536; ++b) {
    Float16 h;
    h.bits = static_cast<uint16_t>(b);
    const float f = static_cast<float>(h);
    const double v = Value(h.bits);
    if (std::isnan(v)) {
      wrong_value += !std::isnan(f);
      wrong_bits += Float16(f).bits != (b | 0x200);  // a NaN keeps its payload and becomes quiet
    } else {
      wrong_value += static_cast<double>(f) != v || std::signbit(f) != (b >= 0x8000);
      wrong_bits += Float16(f).bits != b;
    }
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_bits == 0);
}

TEST_CASE("float to float16 rounds to nearest, ties to even") {
  int wrong = 0;
  for (uint32_t b = 0; b < 0x7c00; ++b) {  // between b and b + 1; the last pair straddles overflow
    const double low = Value(static_cast<uint16_t>(b));
    const double high = b == 0x7bff ? 65536.0 : Value(static_cast<uint16_t>(b + 1));
    const double middle = (low + high) / 2;  // exact in float: one bit more than a float16 has
    const auto tie = static_cast<float>(middle);
    const uint32_t even = (b & 1) != 0 ? b + 1 : b;
    wrong += Float16(tie).bits != even;
    wrong += Float16(std::nextafterf(tie, 0.0f)).bits != b;
    wrong += Float16(std::nextafterf(tie, 1e9f)).bits != b + 1;
    wrong += Float16(-tie).bits != (even | 0x8000);
  }
  CHECK(wrong == 0);
  CHECK(HalfBits(65519.99609375) == 0x7bff);
  CHECK(HalfBits(65520) == 0x7c00);
  CHECK(HalfBits(1e30) == 0x7c00);
  CHECK(HalfBits(-std::numeric_limits<double>::infinity()) == 0xfc00);
  CHECK(HalfBits(std::ldexp(1.0, -25)) == 0);  // ties to even: zero
  CHECK(HalfBits(std::ldexp(1.0, -149)) == 0);
  CHECK(Float16(std::bit_cast<float>(0x7f800001u)).bits == 0x7e00);  // a NaN whose payload is lost
}

TEST_CASE("every bfloat16 round-trips, and floats round to nearest even") {
  int wrong = 0;
  for (uint32_t b = 0; b < 65536; ++b) {
    BFloat16 h;
    h.bits = static_cast<uint16_t>(b);
    const auto f = static_cast<float>(h);
    wrong += std::bit_cast<uint32_t>(f) != b << 16;
    const bool nan = (b & 0x7fff) > 0x7f80;
    wrong += BFloat16(f).bits != (nan ? b | 0x40 : b);
    if ((b & 0x7fff) >= 0x7f80) continue;
    const uint32_t tie = b << 16 | 0x8000;
    wrong += BFloat16(std::bit_cast<float>(tie)).bits != (b & 1 ? b + 1 : b);
    wrong += BFloat16(std::bit_cast<float>(tie - 1)).bits != b;
    wrong += BFloat16(std::bit_cast<float>(tie + 1)).bits != b + 1;
  }
  CHECK(wrong == 0);
  CHECK(BFloat16(std::bit_cast<float>(0x7f800001u)).bits == 0x7fc0);
}

TEST_CASE("element types have names, sizes and bounds") {
  for (int i = 1; i <= 22; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(DTypeFromName(NameOf(dtype)) == dtype);
  }
  CHECK(BitsOf(DType::kInt4) == 4);
  CHECK(BitsOf(DType::kComplex128) == 128);
  CHECK(BitsOf(static_cast<DType>(99)) == 0);
  CHECK(NameOf(static_cast<DType>(-1)) == std::string("unknown"));
  CHECK_THROWS_WITH(DTypeFromName("float17"), "expected the name of an element type such as float32, got 'float17'");
  CHECK(kFloats.ToString() == "float32, float16, bfloat16");
  CHECK(BytesFor(DType::kInt4, 3) == 2);
  CHECK(BytesFor(DType::kFloat64, 0) == 0);
}

TEST_CASE("a byte count that does not fit throws instead of wrapping round") {
  CHECK_THROWS_AS(BytesFor(DType::kFloat32, int64_t{1} << 60), Error);
  CHECK_THROWS_AS(BytesFor(DType::kFloat32, -1), Error);
  CHECK_THROWS_AS(BytesFor(DType::kComplex128, std::numeric_limits<int64_t>::max()), Error);
  CHECK(BytesFor(DType::kInt8, int64_t{1} << 50) == size_t{1} << 50);
}

}  // namespace npu
