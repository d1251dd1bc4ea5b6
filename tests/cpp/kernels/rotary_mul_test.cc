#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;

// The value of `table` at flat position i of `shape` after broadcasting.
double At(const HostTensor& table, const Shape& shape, int64_t i) {
  int64_t offset = 0, stride = 1;
  for (int axis = shape.rank() - 1, t = table.shape().rank() - 1; t >= 0; --axis, --t) {
    const int64_t place = i % shape[axis];
    i /= shape[axis];
    offset += table.shape()[t] == 1 ? 0 : place * stride;
    stride *= table.shape()[t];
  }
  return table[offset];
}

void Check(const HostTensor& x, const HostTensor& cos, const HostTensor& sin, const std::string& mode) {
  CAPTURE(x.shape().ToString());
  CAPTURE(cos.shape().ToString());
  CAPTURE(mode);
  const std::vector<double> before = x.values();
  const HostTensor y =
      RunOp("npu::NPURotaryMul", {x, cos, sin}, {.attributes = {{"rotary_mode", mode}}, .alias = {{0, 0}}})[0];
  const double ulp = x.dtype() == DType::kFloat16 ? 0x1p-11 : x.dtype() == DType::kBFloat16 ? 0x1p-8 : 0x1p-22;
  const int64_t d = x.shape().back();
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t row = i / d * d, k = i % d;
    const bool first = mode == "half" ? k < d / 2 : k % 2 == 0;
    const int64_t partner = mode == "half" ? (k + d / 2) % d : k ^ 1;
    const double expected =
        before[i] * At(cos, x.shape(), i) + (first ? -1 : 1) * before[row + partner] * At(sin, x.shape(), i);
    if (!(std::fabs(y[i] - expected) <= 2 * ulp)) FAIL_CHECK("element ", i, ": ", y[i], " != ", expected);
  }
}

TEST_CASE("npu_rotary_mul in place, for every layout, dtype and way to broadcast the tables") {
  const std::pair<Shape, Shape> shapes[] = {
      {{2, 70, 9, 64}, {1, 70, 1, 64}},  // BSND
      {{2, 9, 70, 64}, {2, 1, 70, 64}},  // BNSD
      {{70, 2, 9, 32}, {70, 1, 1, 32}},  // SBND
      {{70, 9, 128}, {70, 1, 128}},      // TND
      {{3, 5, 6}, {1}},
      {{3, 5, 6}, {5, 1}},
      {{3, 5, 6}, {3, 5, 6}},
      {{2, 3, 5, 2}, {3, 1, 2}},
      {{3, 770}, {770}},
      {{3, 1400}, {3, 1}},
      {{64}, {64}},
      {{2, 3, 1, 1, 2, 8}, {3, 1, 1, 1, 8}},
  };
  for (const auto& [shape, table] : shapes) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (DType table_dtype : {dtype, DType::kFloat32}) {
        for (const char* mode : {"half", "interleave"}) {
          Check(HostTensor::Random(dtype, shape, 1), HostTensor::Random(table_dtype, table, 2),
                HostTensor::Random(table_dtype, table, 3), mode);
        }
      }
    }
  }
}

TEST_CASE("cos and sin may broadcast differently") {
  Check(HostTensor::Random(DType::kFloat32, {4, 3, 8}, 1), HostTensor::Random(DType::kFloat32, {4, 1, 8}, 2),
        HostTensor::Random(DType::kFloat32, {3, 1}, 3), "half");
}

TEST_CASE("a rotation matrix of any float dtype replaces the pairing") {
  const int64_t d = 6;
  const Shape shape{5, 2, d};
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (DType matrix_dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const HostTensor x = HostTensor::Random(dtype, shape, 1);
      const HostTensor cos = HostTensor::Random(dtype, {2, d}, 2), sin = HostTensor::Random(dtype, {2, d}, 3);
      const HostTensor matrix = HostTensor::Random(matrix_dtype, {d, d}, 4);
      const HostTensor y = RunOp("npu::NPURotaryMul", {x, cos, sin, matrix})[0];
      const double ulp = dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-22;
      for (int64_t i = 0; i < x.elements(); ++i) {
        double product = 0.0;
        for (int64_t k = 0; k < d; ++k) product += x[i / d * d + k] * matrix[k * d + i % d];
        const double expected = x[i] * At(cos, shape, i) + product * At(sin, shape, i);
        CHECK(std::fabs(y[i] - expected) <= 4 * ulp);
      }
    }
  }
}

TEST_CASE("tables that do not broadcast to x are refused before anything is launched") {
  const HostTensor x(DType::kFloat32, {2, 5, 8});
  for (const Shape& table : {Shape{2, 8}, Shape{1, 2, 5, 8}, Shape{5, 4}, Shape{0, 8}}) {
    const HostTensor t(DType::kFloat32, table);
    CHECK_THROWS_AS(RunOp("npu::NPURotaryMul", {x, t, t}), npu::Error);
  }
}

}  // namespace
