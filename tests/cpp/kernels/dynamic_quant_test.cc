// npu_dynamic_quant by row to int8, against divisions one by one: values whose quotients lie beside the middle of two
// integers, scales at both ends of float32, and rows that are no numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  float scale;
  std::vector<int> integers;
};

Row Quantized(const std::vector<float>& values) {
  float most = 0;
  for (const float x : values) most = std::isnan(x) || std::isnan(most) ? kNan : std::max(most, std::fabs(x));
  Row row{most / 127.0f, {}};
  for (const float x : values) {
    const float quotient = std::nearbyint(x / row.scale);
    row.integers.push_back(std::isnan(quotient) ? 0 : static_cast<int>(std::clamp(quotient, -128.0f, 127.0f)));
  }
  return row;
}

void Check(DType dtype, int64_t columns, const HostTensor& x, const HostTensor& smooth) {
  const std::vector<HostTensor> out = RunOp("npu::NPUDynamicQuant", {x, smooth, HostTensor()},
                                            {.attributes = {{"quant_mode", "pertoken"}}, .outputs = 2});
  CAPTURE(NameOf(dtype));
  CAPTURE(columns);
  REQUIRE(out[0].dtype() == DType::kInt8);
  int wrong = 0;
  for (int64_t r = 0; r < x.elements() / columns; ++r) {
    std::vector<float> values;
    for (int64_t j = 0; j < columns; ++j) {
      const float value = static_cast<float>(x[r * columns + j]);
      values.push_back(smooth.elements() > 0 ? value * static_cast<float>(smooth[j]) : value);
    }
    const Row expected = Quantized(values);
    const auto scale = static_cast<float>(out[1][r]);
    wrong += std::isnan(expected.scale) ? !std::isnan(scale) : scale != expected.scale;
    for (int64_t j = 0; j < columns; ++j) wrong += out[0][r * columns + j] != expected.integers[static_cast<size_t>(j)];
  }
  CHECK(wrong == 0);
}

TEST_CASE("npu_dynamic_quant has the integers of divisions beside the middle of two integers") {
  constexpr int64_t kRows = 275, kColumns = 515;
  for (const bool smoothed : {false, true}) {
    HostTensor x = HostTensor::Random(DType::kFloat32, {kRows, kColumns}, 1);
    for (int64_t r = 0; r < kRows; ++r) {
      // From scales that take the divisions to those that take the reciprocal, and back.
      const float most = std::ldexp(1.0f + static_cast<float>(r) / 301, static_cast<int>(r) - 148),
                  scale = most / 127.0f;
      x.Set(r * kColumns, most);
      for (int64_t j = 1; j < kColumns; ++j) {
        const auto middle = (static_cast<float>(j % 253) - 126.5f) * scale;
        x.Set(r * kColumns + j, j % 3 == 0   ? std::nextafter(middle, kInfinity)
                                : j % 3 == 1 ? std::nextafter(middle, -kInfinity)
                                             : middle);
      }
    }
    const HostTensor ones = HostTensor::From(DType::kFloat32, {kColumns}, std::vector<double>(kColumns, 1.0));
    Check(DType::kFloat32, kColumns, x, smoothed ? ones : HostTensor());
  }
}

TEST_CASE("npu_dynamic_quant of 16-bit floats, with smooth scales and without") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    for (const int64_t columns : {1, 7, 16, 64, 577, 1536}) {
      const HostTensor x = HostTensor::Random(dtype, {3, 5, columns}, columns);
      Check(dtype, columns, x, HostTensor());
      Check(dtype, columns, x, HostTensor::Random(dtype, {columns}, columns + 1));
    }
}

TEST_CASE("npu_dynamic_quant of rows of zeros, infinities, NaN and the smallest numbers") {
  constexpr int64_t kColumns = 40;
  HostTensor x = HostTensor::Random(DType::kFloat32, {6, kColumns}, 1);
  for (int64_t j = 0; j < kColumns; ++j) {
    x.Set(j, j % 2 == 0 ? 0.0 : -0.0);
    x.Set(5 * kColumns + j, static_cast<double>(j % 5 - 2) * 0x1p-149);
  }
  x.Set(kColumns + 3, kInfinity);
  x.Set(2 * kColumns + 33, -kInfinity);
  x.Set(3 * kColumns + 4, kNan);
  x.Set(4 * kColumns + 39, kNan);
  Check(DType::kFloat32, kColumns, x, HostTensor());
}

}  // namespace
}  // namespace npu::test
