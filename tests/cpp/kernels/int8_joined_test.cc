// QuantGatedMatMul and QuantMatMulAddRmsNorm against a naive reference in double, whose sums of integers are exact:
// whole and partial panels, few rows and many, scales of rows or none.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/expected.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr double kEpsilon = 1e-3;

struct Case {
  DType dtype = DType::kBFloat16;
  int64_t m, n, k;
  bool row_scales = true;
};

HostTensor Integers(const Shape& shape, int seed) {
  const HostTensor random = HostTensor::Random(DType::kFloat32, shape, seed);
  HostTensor out(DType::kInt8, shape);
  for (int64_t i = 0; i < out.elements(); ++i) out.Set(i, std::nearbyint(random[i] * 127));
  return out;
}

HostTensor Scales(const Shape& shape, int seed, double size) {
  HostTensor out = HostTensor::Random(DType::kFloat32, shape, seed);
  for (int64_t i = 0; i < out.elements(); ++i) out.Set(i, size * (1.5 + out[i]));
  return out;
}

struct Operands {
  explicit Operands(const Case& c)
      : x(Integers({1, c.m, c.k}, 1)),
        weight(Integers({c.k, c.n}, 2)),
        scale(Scales({c.n}, 3, c.row_scales ? 1.0 / 128 : 1.0 / 16384)),
        row_scale(c.row_scales ? Scales({1, c.m}, 4, 1.0 / 128) : HostTensor()),
        columns(c.n),
        depth(c.k) {}

  double ProductAt(int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += x[row * depth + k] * weight[k * columns + column];
    return sum * scale[column] * (row_scale.elements() > 0 ? row_scale[row] : 1.0);
  }

  HostTensor x, weight, scale, row_scale;
  int64_t columns, depth;
};

double RoundingOf(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8; }

void CheckGated(const Case& c) {
  INFO(std::string(NameOf(c.dtype)), " m ", c.m, " n ", c.n, " k ", c.k, " row scales ", c.row_scales);
  const Operands o(c);
  RunOptions options{.attributes = {{"output_dtype", int64_t{c.dtype == DType::kFloat16 ? 1 : 27}}}, .prepack = {1, 2}};
  const HostTensor y = RunOp("npu.fused::QuantGatedMatMul", {o.x, o.weight, o.scale, o.row_scale}, options)[0];
  const int64_t half = c.n / 2;
  REQUIRE(y.shape() == Shape{1, c.m, half});
  REQUIRE(y.dtype() == c.dtype);
  CHECK(CountWrong(y, c.m, half, [&](int64_t i, int64_t j) -> Expected {
          const double gate = o.ProductAt(i, j), value = o.ProductAt(i, half + j);
          const double expected = gate / (1 + std::exp(-gate)) * value;
          // Silu within 5e-6 and its argument within three roundings of float32; the result is rounded once.
          const double relative = RoundingOf(c.dtype) + 5e-6 + 0x1p-22 * (1 + std::fabs(gate));
          return {expected, relative * std::fabs(expected) + 0x1p-24};
        }) == 0);
}

void CheckNormed(const Case& c) {
  INFO(std::string(NameOf(c.dtype)), " m ", c.m, " n ", c.n, " k ", c.k, " row scales ", c.row_scales);
  const Operands o(c);
  const HostTensor residual = HostTensor::Random(c.dtype, {1, c.m, c.n}, 5),
                   gamma = HostTensor::Random(c.dtype, {c.n}, 6);
  RunOptions options{.attributes = {{"epsilon", kEpsilon}}, .outputs = 2, .prepack = {1, 2}};
  const std::vector<HostTensor> out =
      RunOp("npu.fused::QuantMatMulAddRmsNorm", {o.x, o.weight, o.scale, residual, gamma, o.row_scale}, options);
  const HostTensor &y = out[0], &sum = out[1];
  REQUIRE(y.shape() == Shape{1, c.m, c.n});
  REQUIRE(y.dtype() == c.dtype);
  const double rounding = RoundingOf(c.dtype);
  CHECK(CountWrong(sum, c.m, c.n, [&](int64_t i, int64_t j) -> Expected {
          const double product = o.ProductAt(i, j), expected = product + residual[i * c.n + j];
          return {expected, rounding * std::fabs(expected) + 0x1p-22 * std::fabs(product) + 0x1p-24};
        }) == 0);
  CHECK(CountWrongNorms(y, sum, gamma, c.m, kEpsilon, rounding) == 0);
}

template <class F>
void ForEachCase(const F& check) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    for (const bool row_scales : {true, false}) {
      check({.dtype = dtype, .m = 1, .n = 80, .k = 100, .row_scales = row_scales});
      check({.dtype = dtype, .m = 5, .n = 32, .k = 64, .row_scales = row_scales});
      check({.dtype = dtype, .m = 40, .n = 50, .k = 608, .row_scales = row_scales});
    }
  check({.m = 130, .n = 192, .k = 64});
  check({.m = 3, .n = 2, .k = 7});
}

TEST_CASE("QuantGatedMatMul matches a naive reference") { ForEachCase(CheckGated); }

TEST_CASE("QuantMatMulAddRmsNorm matches a naive reference") { ForEachCase(CheckNormed); }

TEST_CASE("joined products of integers refuse what does not fit their weight") {
  TestNode odd("npu.fused::QuantGatedMatMul", {.attributes = {{"output_dtype", int64_t{27}}}});
  CHECK_THROWS_WITH(odd.PrePack(1, Integers({4, 3}, 1)),
                    "[QuantGatedMatMul] expected x2 of an even number of columns, got 3");
  CHECK_THROWS_WITH(TestNode("npu.fused::QuantGatedMatMul", {.attributes = {{"output_dtype", int64_t{2}}}}),
                    "[QuantGatedMatMul] expected output_dtype to be the type code 1 (float16) or 27 (bfloat16), got 2");
  const Operands o({.m = 2, .n = 32, .k = 64});
  const auto run = [&](const HostTensor& x, const HostTensor& scale, const HostTensor& row_scale) {
    RunOp("npu.fused::QuantGatedMatMul", {x, o.weight, scale, row_scale},
          {.attributes = {{"output_dtype", int64_t{27}}}, .prepack = {1, 2}});
  };
  CHECK_THROWS_WITH(run(o.x, Scales({31}, 1, 1), o.row_scale),
                    "[QuantGatedMatMul] expected scale of shape [32], got [31]");
  CHECK_THROWS_WITH(run(o.x, o.scale, Scales({2}, 1, 1)),
                    "[QuantGatedMatMul] expected pertoken_scale of shape [1, 2], got [2]");
  CHECK_THROWS(run(Integers({1, 2, 63}, 1), o.scale, o.row_scale));
}

}  // namespace
}  // namespace npu::test
