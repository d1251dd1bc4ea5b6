// Floats by int8 and int4 weights: few rows, whose product dequantises in registers, more, which expand panels, and
// rows that are rounded to int8, by vector instructions and tile registers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "doctest/doctest.h"
#include "ep/kernels/quantization/quantized_weight.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;

struct Case {
  int64_t m, n, k, group = 0;
  bool int4 = false, offset = false, packed = true, rounded = false;
  bool along_columns = false;     // words of int4
  double more_than_integers = 0;  // added to offsets, which are integers without it
};

// Rounded half to even to the 8 bits of bfloat16.
double Bf16(double value) {
  uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return std::bit_cast<float>(bits);
}

class Numbers {
 public:
  explicit Numbers(int64_t seed) : state_(static_cast<uint64_t>(seed)) {}
  double Integer(int64_t low, int64_t high) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(low + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(high - low)));
  }

 private:
  uint64_t state_;
};

// Rows of K values as multiples of max / 127 of each group.
void RoundRows(std::vector<double>& x, int64_t k, int64_t group) {
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(k))
    for (int64_t begin = 0; begin < k; begin += group) {
      const auto first = x.begin() + static_cast<int64_t>(row) + begin, last = first + std::min(group, k - begin);
      float most = 0;
      for (auto at = first; at != last; ++at) most = std::max(most, std::fabs(static_cast<float>(*at)));
      for (auto at = first; at != last && most > 0; ++at)
        *at = std::nearbyint(static_cast<double>(static_cast<float>(*at) * (127 / most))) * (most / 127.0);
    }
}

struct Operands {
  std::vector<double> x, weight, scale, offset;

  explicit Operands(const Case& c) {
    Numbers numbers(c.m + 31 * c.n + 1009 * c.k + c.group);
    const int64_t groups = c.group ? (c.k + c.group - 1) / c.group : 1;
    for (int64_t i = 0; i < c.m * c.k; ++i) x.push_back(numbers.Integer(-64, 64) / 32);
    for (int64_t i = 0; i < c.k * c.n; ++i) weight.push_back(numbers.Integer(c.int4 ? -8 : -128, c.int4 ? 8 : 128));
    for (int64_t i = 0; i < groups * c.n; ++i) {
      scale.push_back(Bf16(0.001 * numbers.Integer(5, 20)));
      offset.push_back(numbers.Integer(-9, 9) + c.more_than_integers);
    }
  }
};

std::vector<double> Multiply(const Case& c, const Operands& operands) {
  HostTensor stored = HostTensor::From(DType::kInt8, {c.k, c.n}, operands.weight);
  if (c.int4) {
    std::vector<double> words;
    const int64_t step = c.along_columns ? c.n : 1;  // between the elements of a word
    for (int64_t i = 0; i < c.k * c.n; i += 8) {
      const int64_t first = c.along_columns ? i / (8 * c.n) * 8 * c.n + i / 8 % c.n : i;
      uint32_t word = 0;
      for (int64_t t = 0; t < 8; ++t) {
        const double value = operands.weight[static_cast<size_t>(first + t * step)];
        word |= (static_cast<uint32_t>(static_cast<int32_t>(value)) & 15u) << (4 * t);
      }
      words.push_back(static_cast<int32_t>(word));
    }
    stored = HostTensor::From(DType::kInt32, c.along_columns ? Shape({c.k / 8, c.n}) : Shape({c.k, c.n / 8}), words);
  }
  const Shape scales = c.group ? Shape({(c.k + c.group - 1) / c.group, c.n}) : Shape{c.n};
  RunOptions options;
  options.attributes = {{"antiquant_group_size", c.group}, {"inner_precise", static_cast<int64_t>(c.rounded)}};
  options.input_shapes = {Shape({c.m, c.k})};
  if (c.packed) options.prepack = {1};
  return RunOp("npu::NPUWeightQuantBatchMatmulV2",
               {HostTensor::From(DType::kBFloat16, {c.m, c.k}, operands.x), stored,
                HostTensor::From(DType::kBFloat16, scales, operands.scale),
                c.offset ? HostTensor::From(DType::kBFloat16, scales, operands.offset) : HostTensor(), HostTensor(),
                HostTensor(), HostTensor()},
               options)[0]
      .values();
}

void Check(const Case& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.group);
  CAPTURE(c.int4);
  CAPTURE(c.offset);
  CAPTURE(c.packed);
  CAPTURE(c.rounded);
  CAPTURE(c.along_columns);
  Operands operands(c);
  const std::vector<double> values = Multiply(c, operands);
  auto& [x, weight, scale, offset] = operands;
  if (c.rounded) RoundRows(x, c.k, c.group ? c.group : 128);
  int wrong = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const auto at = static_cast<size_t>((c.group ? k / c.group : 0) * c.n + j);
        const double w = weight[static_cast<size_t>(k * c.n + j)] + (c.offset ? offset[at] : 0);
        const double exact = w * scale[at];
        const double product = x[static_cast<size_t>(i * c.k + k)] * (c.rounded ? exact : Bf16(exact));
        sum += product;
        magnitude += std::fabs(product);
      }
      // The result is rounded to bfloat16 once; sums of float32 err by the size of what they add.
      const double allowed = std::fabs(sum) * 0x1p-8 + magnitude * 1e-6;
      wrong += !(std::fabs(values[static_cast<size_t>(i * c.n + j)] - sum) <= allowed);
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("weight-only matmul: every number of rows, constant weights and others") {
  for (const bool int4 : {false, true})
    for (const int64_t m : {1, 2, 3, 4, 5, 13})
      for (const bool packed : {true, false})
        Check({.m = m, .n = 72, .k = 320, .int4 = int4, .offset = m % 2 == 0, .packed = packed});
}

TEST_CASE("weight-only matmul: groups, also of odd length, and depths that end within one") {
  for (const bool int4 : {false, true})
    for (const int64_t group : {32, 7, 2, 130})
      for (const int64_t k : {64, 600, 77})
        Check({.m = 2, .n = 40, .k = k, .group = group, .int4 = int4, .offset = true});
}

TEST_CASE("weight-only matmul: columns that end within a panel") {
  for (const int64_t n : {8, 16, 32, 56}) Check({.m = 1, .n = n, .k = 96, .group = 32, .int4 = true, .offset = true});
}

TEST_CASE("weight-only matmul: words of 4-bit integers along columns, of any number of them") {
  for (const int64_t n : {1, 7, 31, 32, 33, 72})
    for (const int64_t k : {8, 72, 320})
      for (const bool packed : {true, false})
        Check({.m = 3, .n = n, .k = k, .int4 = true, .offset = true, .packed = packed, .along_columns = true});
}

TEST_CASE("weight-only matmul: weights that are not constant, of any depth and number of columns") {
  for (const int64_t k : {1, 2, 3, 5, 31, 66, 127})
    for (const int64_t n : {1, 7, 31, 33}) Check({.m = 2, .n = n, .k = k, .packed = false});
  for (const int64_t k : {1, 2, 3, 5, 31, 66, 127})
    for (const int64_t n : {8, 40}) Check({.m = 2, .n = n, .k = k, .int4 = true, .packed = false});
}

TEST_CASE("weight-only matmul: rows rounded to int8, every number of rows") {
  for (const bool int4 : {false, true})
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 38, 39, 40, 131})  // of blocks, also two to four alone
      for (const bool packed : {true, false})
        Check({.m = m, .n = 72, .k = 300, .int4 = int4, .offset = m % 2 == 0, .packed = packed, .rounded = true});
}

TEST_CASE("weight-only matmul: rows rounded to int8 in several blocks, by their number and by their depth") {
  Check({.m = 530, .n = 40, .k = 64, .rounded = true});
  Check({.m = 131, .n = 8, .k = 4200, .int4 = true, .offset = true, .rounded = true});
}

TEST_CASE("weight-only matmul: rows rounded to int8 in groups, and depths that end within one") {
  for (const bool int4 : {false, true})
    for (const int64_t group : {32, 4, 132, 1000})
      for (const int64_t k : {64, 600, 77, 1060})
        for (const int64_t m : {3, 37})
          Check({.m = m, .n = 40, .k = k, .group = group, .int4 = int4, .offset = true, .rounded = true});
}

TEST_CASE("weight-only matmul: many rows by small groups are at most as far off as rounding makes them") {
  const Case c{.m = 70, .n = 40, .k = 320, .group = 32, .int4 = true, .offset = true, .rounded = true};
  const Operands operands(c);
  const std::vector<double> values = Multiply(c, operands);
  int wrong = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, allowed = 0;
      for (int64_t begin = 0; begin < c.k; begin += c.group) {
        const auto scale_at = static_cast<size_t>(begin / c.group * c.n + j);
        double most = 0;
        for (int64_t k = begin; k < begin + c.group; ++k)
          most = std::max(most, std::fabs(operands.x[static_cast<size_t>(i * c.k + k)]));
        for (int64_t k = begin; k < begin + c.group; ++k) {
          const double integer = operands.weight[static_cast<size_t>(k * c.n + j)] + operands.offset[scale_at];
          const double w = integer * operands.scale[scale_at], x = operands.x[static_cast<size_t>(i * c.k + k)];
          sum += x * w;
          // x rounded to int8, or w to bfloat16.
          allowed += std::fabs(w) * std::max(most / 254, std::fabs(x) * 0x1p-9) * (1 + 1e-5);
        }
      }
      allowed += (std::fabs(sum) + allowed) * 0x1p-8;  // of the result
      wrong += !(std::fabs(values[static_cast<size_t>(i * c.n + j)] - sum) <= allowed);
    }
  CHECK(wrong == 0);
}

// One token is multiplied by vector instructions and several by tile registers, where there are any. With those, more
// rows by small groups are not rounded.
TEST_CASE("weight-only matmul: a row rounded to int8 has the same bits alone and among others") {
  for (const bool int4 : {false, true})
    for (const std::optional<double> offset : {std::optional<double>(), {0.0}, {0.125}, {0.3125}})
      for (const int64_t group : {0, 32, 64, 96, 128}) {
        CAPTURE(int4);
        CAPTURE(offset.value_or(-1));
        CAPTURE(group);
        Case c{.m = group == 0 || group == 128 ? 150 : 60,
               .n = 72,
               .k = 300,
               .group = group,
               .int4 = int4,
               .offset = offset.has_value(),
               .rounded = true,
               .more_than_integers = offset.value_or(0)};
        const Operands all(c);
        const std::vector<double> values = Multiply(c, all);
        for (const int64_t row : {int64_t{0}, int64_t{15}, int64_t{31}, int64_t{32}, c.m - 1}) {
          Case alone = c;
          alone.m = 1;
          Operands one = all;
          one.x.assign(all.x.begin() + row * c.k, all.x.begin() + (row + 1) * c.k);
          const auto begin = values.begin() + row * c.n;
          CHECK(Multiply(alone, one) == std::vector<double>(begin, begin + c.n));
        }
      }
}

TEST_CASE("weight-only matmul: offsets that are eighths, or no sum of bytes, beside rows rounded to int8") {
  for (const bool int4 : {false, true})
    for (const double more : {0.125, -0.3125, 4.0, 20.0})
      for (const int64_t m : {3, 16, 37})
        Check({.m = m,
               .n = 40,
               .k = 320,
               .group = 32,
               .int4 = int4,
               .offset = true,
               .rounded = true,
               .more_than_integers = more});
}

// Rows are rounded by fours; a group whose reciprocal is no number is rounded row by row.
TEST_CASE("weight-only matmul: rows of zeros, infinities, NaN and tiny numbers have the same bits among others") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool offset : {false, true}) {
    CAPTURE(offset);
    const Case c{.m = 20, .n = 40, .k = 96, .group = 32, .int4 = true, .offset = offset, .rounded = true};
    Operands all(c);
    const auto row_of = [&](int64_t row) { return all.x.begin() + row * c.k; };
    std::fill_n(row_of(1), 32, 0.0);
    row_of(2)[40] = infinity;
    row_of(4)[5] = -infinity;
    row_of(7)[70] = std::numeric_limits<double>::quiet_NaN();
    for (int64_t k = 0; k < 32; ++k) row_of(9)[k] = (k % 5 - 2) * 0x1p-130;
    for (int64_t k = 32; k < 64; ++k) row_of(10)[k] = (k % 3 - 1) * 0x1p-120;
    for (int64_t k = 0; k < 32; ++k) row_of(14)[k] = (k % 7 - 3) * 0x1p120;
    const std::vector<double> values = Multiply(c, all);
    for (int64_t row = 0; row < c.m; ++row) {
      CAPTURE(row);
      Case alone = c;
      alone.m = 1;
      Operands one = all;
      one.x.assign(row_of(row), row_of(row + 1));
      const std::vector<double> expected = Multiply(alone, one);
      int wrong = 0;
      for (int64_t j = 0; j < c.n; ++j) {
        const double value = values[static_cast<size_t>(row * c.n + j)], alone_value = expected[static_cast<size_t>(j)];
        wrong += std::isnan(alone_value) ? !std::isnan(value) : value != alone_value;
        if (row == 0 || row == 3) wrong += !std::isfinite(value);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("weight-only: the model's shapes tell along which axis constant words hold elements") {
  const Shape words{16, 24};  // [16, 192] or [128, 24]
  const auto depth = [&](int64_t given, const std::optional<Shape>& scales) {
    return npu::QuantizedWeight::DeclaredDepth(words, given, scales);
  };
  CHECK(depth(16, std::nullopt) == 16);
  CHECK(depth(128, std::nullopt) == 128);
  CHECK(depth(17, Shape{24}) == -1);
  CHECK(depth(-1, std::nullopt) == -1);
  CHECK(depth(-1, Shape{192}) == 16);
  CHECK(depth(-1, Shape{4, 24}) == 128);
  CHECK(depth(-1, Shape{1}) == -1);
  CHECK(depth(-1, Shape{-1}) == -1);
  CHECK(depth(-1, Shape{200}) == -1);
}
