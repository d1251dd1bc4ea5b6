#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ep/kernels/quantization/int4.h"
#include "ep/kernels/quantization/packed_scale.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu {
namespace {

TEST_CASE("quantization: a packed scale gives its scale and its offset back") {
  for (const float scale : {0.0f, 1.0f, -2.5f, 0x1.ffcp-126f, std::numeric_limits<float>::infinity()}) {
    for (int32_t offset = -256; offset <= 255; ++offset) {
      const int64_t packed = PackScale(scale, true, offset);
      CHECK(UnpackScale(packed) == scale);
      CHECK(UnpackOffset(packed) == offset);
    }
    CHECK(UnpackOffset(PackScale(scale, false)) == 0);
  }
  CHECK(std::isnan(UnpackScale(PackScale(std::bit_cast<float>(0x7f800001u), false))));
  CHECK(std::isnan(UnpackScale(PackScale(std::bit_cast<float>(0x7fffffffu), true))));
}

TEST_CASE("quantization: int4 is unpacked as it was packed, whatever the other bits of a value") {
  std::vector<int8_t> values(8 * 32), unpacked(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int8_t>(i * 37);
  std::vector<uint32_t> words(32);
  PackInt4(values.data(), words.data(), 32);
  UnpackInt4(words.data(), unpacked.data(), 32);
  for (size_t i = 0; i < values.size(); ++i) {
    const int nibble = values[i] & 15;
    CHECK(unpacked[i] == (nibble > 7 ? nibble - 16 : nibble));
    CHECK(((words[i / 8] >> (4 * (i % 8))) & 15u) == static_cast<uint32_t>(nibble));
  }
}

TEST_CASE("quantization: rounding is the C library's, half to even") {
  for (int i = -4000; i <= 4000; ++i) {
    const float x = static_cast<float>(i) / 8;
    CHECK(RoundHalfEven(x) == std::nearbyint(x));
    CHECK(RoundSaturated(x, -128.0f, 127.0f) == std::clamp(static_cast<int>(std::nearbyint(x)), -128, 127));
  }
  for (const float x : {0x1p22f + 0.5f, 0x1p23f - 0.5f, 0x1p23f + 1.0f, 0x1p100f, -0x1p22f - 0.5f}) {
    CHECK(RoundHalfEven(x) == std::nearbyint(x));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK(RoundSaturated(kNan, -8.0f, 7.0f) == 0);
  CHECK(RoundSaturated(-kInfinity, -8.0f, 7.0f) == -8);
  CHECK(SaturateToInt32(kNan) == 0);
  CHECK(SaturateToInt32(0x1p31f) == INT32_MAX);
  CHECK(SaturateToInt32(kInfinity) == INT32_MAX);
  CHECK(SaturateToInt32(-0x1p31f) == INT32_MIN);
  CHECK(SaturateToInt32(-kInfinity) == INT32_MIN);
}

}  // namespace
}  // namespace npu
