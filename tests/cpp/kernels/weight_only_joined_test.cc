// WeightQuantGatedMatMul and WeightQuantMatMulAddRmsNorm against a naive reference in double: whole and partial panels,
// few rows and many, int8 and int4, groups or one scale for each column, offsets or none, rows rounded to int8 or not.
#include <algorithm>
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
  int64_t m = 1, n = 64, k = 96, group = 0;
  bool int4 = false, offset = false, rounded = false, along_columns = false;
};

struct Sum {
  double value, error;  // and how far off a float32 sum in any order may be
};

class Reference {
 public:
  explicit Reference(const Case& c)
      : case_(c),
        groups_(c.group == 0 ? 1 : (c.k + c.group - 1) / c.group),
        x(HostTensor::Random(c.dtype, {1, c.m, c.k}, 1)),
        scale(HostTensor::Random(c.dtype, c.group == 0 ? Shape{c.n} : Shape{groups_, c.n}, 2)),
        offset(HostTensor::Random(c.dtype, scale.shape(), 3)) {
    const HostTensor random = HostTensor::Random(DType::kFloat32, {c.k, c.n}, 4);
    for (int64_t i = 0; i < c.k * c.n; ++i) {
      const double most = c.int4 ? 7 : 127;
      integers_.push_back(std::clamp(std::nearbyint(random[i] * most), -most - 1, most));
    }
    for (int64_t i = 0; i < scale.elements(); ++i) scale.Set(i, scale[i] / 64);
    for (const double each : x.values()) rows_.push_back(each);
    if (c.rounded) RoundRows();
  }

  HostTensor Weight() const {
    if (!case_.int4) return HostTensor::From(DType::kInt8, {case_.k, case_.n}, integers_);
    const int64_t step = case_.along_columns ? case_.n : 1;  // between the elements of a word
    std::vector<double> words;
    for (int64_t i = 0; i < case_.k * case_.n; i += 8) {
      const int64_t first = case_.along_columns ? i / (8 * case_.n) * 8 * case_.n + i / 8 % case_.n : i;
      uint32_t word = 0;
      for (int64_t t = 0; t < 8; ++t) {
        const auto value = static_cast<int32_t>(integers_[static_cast<size_t>(first + t * step)]);
        word |= (static_cast<uint32_t>(value) & 15u) << (4 * t);
      }
      words.push_back(static_cast<int32_t>(word));
    }
    const Shape shape = case_.along_columns ? Shape{case_.k / 8, case_.n} : Shape{case_.k, case_.n / 8};
    return HostTensor::From(DType::kInt32, shape, words);
  }

  Sum ProductAt(int64_t row, int64_t column) const {
    Sum out{0, 0};
    // Without products of integers each weight is rounded to the activations' type, and its sum with an offset if that
    // is float16.
    const double of_weight = case_.rounded ? 0 : case_.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-10;
    for (int64_t k = 0; k < case_.k; ++k) {
      const int64_t at = (case_.group == 0 ? 0 : k / case_.group) * case_.n + column;
      const double integer =
          integers_[static_cast<size_t>(k * case_.n + column)] + (case_.offset ? double{offset[at]} : 0.0);
      const double product = rows_[static_cast<size_t>(row * case_.k + k)] * integer * scale[at];
      out.value += product;
      out.error += std::fabs(product) * (of_weight + (static_cast<double>(case_.k) + 4) * 0x1p-24);
    }
    return out;
  }

  RunOptions Options(size_t offset_input) const {
    RunOptions options;
    options.attributes = {{"antiquant_group_size", case_.group}, {"inner_precise", int64_t{case_.rounded}}};
    options.input_shapes = {x.shape()};
    options.prepack = {1, 2};
    if (case_.offset) options.prepack.push_back(offset_input);
    return options;
  }

 private:
  // To multiples of max / 127 of each group.
  void RoundRows() {
    const int64_t group = case_.group == 0 ? 128 : case_.group;
    for (int64_t row = 0; row < case_.m * case_.k; row += case_.k)
      for (int64_t begin = 0; begin < case_.k; begin += group) {
        const auto first = rows_.begin() + row + begin, last = first + std::min(group, case_.k - begin);
        float most = 0;
        for (auto at = first; at != last; ++at) most = std::max(most, std::fabs(static_cast<float>(*at)));
        for (auto at = first; at != last && most > 0; ++at)
          *at = std::nearbyint(static_cast<double>(static_cast<float>(*at) * (127 / most))) * (most / 127.0);
      }
  }

  Case case_;
  int64_t groups_;
  std::vector<double> integers_, rows_;

 public:
  HostTensor x, scale, offset;
};

double Silu(double x) { return x / (1 + std::exp(-x)); }

double RoundingOf(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8; }

void CheckGated(const Case& c) {
  INFO(std::string(NameOf(c.dtype)), " m ", c.m, " n ", c.n, " k ", c.k, " group ", c.group, " int4 ", c.int4,
       " offset ", c.offset, " rounded ", c.rounded);
  const Reference r(c);
  std::vector<HostTensor> inputs{r.x, r.Weight(), r.scale};
  if (c.offset) inputs.push_back(r.offset);
  const HostTensor y = RunOp("npu.fused::WeightQuantGatedMatMul", inputs, r.Options(3))[0];
  const int64_t half = c.n / 2;
  REQUIRE(y.shape() == Shape{1, c.m, half});
  REQUIRE(y.dtype() == c.dtype);
  CHECK(CountWrong(y, c.m, half, [&](int64_t i, int64_t j) -> Expected {
          const Sum gate = r.ProductAt(i, j), value = r.ProductAt(i, half + j);
          const double expected = Silu(gate.value) * value.value;
          // The slope of silu is at most 1.1; of results of 16 bits it is within 5e-6.
          const double bound = 1.1 * gate.error * (std::fabs(value.value) + value.error) +
                               std::fabs(Silu(gate.value)) * value.error +
                               (RoundingOf(c.dtype) + 5e-6) * std::fabs(expected) + 0x1p-24;
          return {expected, bound};
        }) == 0);
}

void CheckNormed(const Case& c) {
  INFO(std::string(NameOf(c.dtype)), " m ", c.m, " n ", c.n, " k ", c.k, " group ", c.group, " int4 ", c.int4,
       " offset ", c.offset, " rounded ", c.rounded);
  const Reference r(c);
  const HostTensor residual = HostTensor::Random(c.dtype, {1, c.m, c.n}, 5),
                   gamma = HostTensor::Random(c.dtype, {c.n}, 6);
  std::vector<HostTensor> inputs{r.x, r.Weight(), r.scale, residual, gamma};
  if (c.offset) inputs.push_back(r.offset);
  RunOptions options = r.Options(5);
  options.attributes["epsilon"] = kEpsilon;
  options.outputs = 2;
  const std::vector<HostTensor> out = RunOp("npu.fused::WeightQuantMatMulAddRmsNorm", inputs, options);
  const HostTensor &y = out[0], &sum = out[1];
  REQUIRE(y.shape() == Shape{1, c.m, c.n});
  const double rounding = RoundingOf(c.dtype);
  CHECK(CountWrong(sum, c.m, c.n, [&](int64_t i, int64_t j) -> Expected {
          const Sum product = r.ProductAt(i, j);
          const double expected = product.value + residual[i * c.n + j];
          return {expected, product.error + rounding * (std::fabs(expected) + product.error) + 0x1p-24};
        }) == 0);
  CHECK(CountWrongNorms(y, sum, gamma, c.m, kEpsilon, rounding) == 0);
}

template <class F>
void ForEachCase(const F& check) {
  for (const bool rounded : {false, true})
    for (const bool int4 : {false, true})
      for (const int64_t m : {1, 5, 16, 40}) {
        const DType dtype = m == 5 ? DType::kFloat16 : DType::kBFloat16;
        check(
            {.dtype = dtype, .m = m, .n = 80, .k = 320, .group = 32, .int4 = int4, .offset = true, .rounded = rounded});
        check({.dtype = dtype, .m = m, .n = 48, .k = 200, .int4 = int4, .offset = m == 16, .rounded = rounded});
      }
  // Words along columns have no more columns than words; int8 has any number.
  check({.m = 16, .n = 42, .k = 96, .group = 32, .int4 = true, .offset = true, .rounded = true, .along_columns = true});
  check({.m = 3, .n = 2, .k = 64, .group = 32, .int4 = true, .rounded = true, .along_columns = true});
  check({.m = 130, .n = 38, .k = 64});
}

TEST_CASE("WeightQuantGatedMatMul matches a naive reference") { ForEachCase(CheckGated); }

TEST_CASE("WeightQuantMatMulAddRmsNorm matches a naive reference") { ForEachCase(CheckNormed); }

TEST_CASE("joined weight-only products refuse what does not fit their weight") {
  TestNode odd("npu.fused::WeightQuantGatedMatMul");
  CHECK_THROWS_WITH(odd.PrePack(1, HostTensor::Random(DType::kInt8, {4, 3}, 1)),
                    "[WeightQuantGatedMatMul] expected a weight of an even number of columns, got 3");
  CHECK_THROWS_WITH(odd.PrePack(2, HostTensor::Random(DType::kBFloat16, {2, 2, 2}, 1)),
                    "[WeightQuantGatedMatMul] expected antiquant_scale of one or two axes, got [2, 2, 2]");
  const Case c{.m = 2, .n = 32, .k = 64, .group = 32};
  const Reference r(c);
  const auto run = [&](const HostTensor& x, const HostTensor& scale) {
    RunOp("npu.fused::WeightQuantGatedMatMul", {x, r.Weight(), scale}, r.Options(3));
  };
  CHECK_THROWS_WITH(run(HostTensor::Random(c.dtype, {2, 63}, 1), r.scale),
                    "[WeightQuantGatedMatMul] expected x [.., M, 64], got [2, 63]");
  CHECK_THROWS_WITH(
      run(r.x, HostTensor::Random(c.dtype, {3, 32}, 1)),
      "[WeightQuantGatedMatMul] expected antiquant_scale of shape [2, 32], groups of 32 rows, got [3, 32]");
  CHECK_THROWS_WITH(run(r.x, HostTensor::Random(DType::kFloat16, {2, 32}, 1)),
                    "[WeightQuantGatedMatMul] expected antiquant_scale of x's dtype bfloat16, or int64, got float16");
}

}  // namespace
}  // namespace npu::test
