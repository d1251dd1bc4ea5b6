// Matmuls of quantised weights: the epilogue's order of operations, groups, and constant weights, bit by bit.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;
using npu::test::TestNode;

// Codes of element types in nodes.
constexpr int64_t kFloat16Code = 1, kInt32Code = 3;

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  // In [low, high).
  int64_t Integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low));
  }
  std::vector<double> Integers(int64_t count, int64_t low, int64_t high) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(Integer(low, high)));
    return values;
  }
  // Multiples of 2^-20 that float32 has.
  std::vector<double> Floats(int64_t count, double low, double high) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(std::round((low + (high - low) * static_cast<double>(Next() % 4096) / 4096) * 0x1p20) * 0x1p-20);
    return values;
  }

 private:
  uint64_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  uint64_t state_;
};

// int4 values [rows, columns] in words along a row, or along a column.
HostTensor Words(const std::vector<double>& values, int64_t rows, int64_t columns, bool along_columns) {
  const int64_t words_rows = along_columns ? rows / 8 : rows, words_columns = along_columns ? columns : columns / 8;
  std::vector<double> words;
  for (int64_t i = 0; i < words_rows; ++i)
    for (int64_t j = 0; j < words_columns; ++j) {
      uint32_t word = 0;
      for (int64_t t = 0; t < 8; ++t) {
        const double value = along_columns ? values[static_cast<size_t>((8 * i + t) * columns + j)]
                                           : values[static_cast<size_t>(i * columns + 8 * j + t)];
        word |= (static_cast<uint32_t>(static_cast<int32_t>(value)) & 15u) << (4 * t);
      }
      words.push_back(static_cast<int32_t>(word));
    }
  return HostTensor::From(DType::kInt32, {words_rows, words_columns}, words);
}

struct Case {
  int64_t m, n, k, group = 0;
  bool left_int4 = false, right_int4 = false, along_columns = false, packed = false;
};

// Every step is rounded to float32 by itself: the volatile keeps the compiler from joining two.
float Rounded(float value) {
  volatile float kept = value;
  return kept;
}

void Check(const Case& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.group);
  CAPTURE(c.left_int4);
  CAPTURE(c.right_int4);
  CAPTURE(c.along_columns);
  CAPTURE(c.packed);
  Numbers numbers(static_cast<uint64_t>(c.m + 31 * c.n + 1009 * c.k));
  const int64_t groups = c.group ? c.k / c.group : 1, length = c.group ? c.group : c.k;
  const auto a = numbers.Integers(c.m * c.k, c.left_int4 ? -8 : -128, c.left_int4 ? 8 : 128);
  const auto b = numbers.Integers(c.k * c.n, c.right_int4 ? -8 : -128, c.right_int4 ? 8 : 128);
  const auto scale = numbers.Floats(groups * c.n, 0.001, 0.02), tokens = numbers.Floats(c.m, 0.1, 0.9);
  const bool offset_per_column = c.group && !c.left_int4;
  const auto offset = numbers.Floats(offset_per_column ? c.n : groups * c.n, -7.5, 7.5),
             bias = numbers.Floats(c.n, -3, 3);

  std::vector<double> want;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      float total = offset_per_column ? static_cast<float>(offset[static_cast<size_t>(j)]) : 0.0f;
      for (int64_t g = 0; g < groups; ++g) {
        int64_t sum = 0, row = 0;
        for (int64_t k = g * length; k < (g + 1) * length; ++k) {
          const auto x = static_cast<int64_t>(a[static_cast<size_t>(i * c.k + k)]) - (offset_per_column ? 8 : 0);
          sum += x * static_cast<int64_t>(b[static_cast<size_t>(k * c.n + j)]);
          row += x;
        }
        const auto at = static_cast<size_t>(g * c.n + j);
        float part = static_cast<float>(sum);
        if (c.group && c.left_int4)
          part = Rounded(part - Rounded(static_cast<float>(row) * static_cast<float>(offset[at])));
        part = Rounded(part * static_cast<float>(scale[at]));
        if (!c.group) part = Rounded(part * static_cast<float>(tokens[static_cast<size_t>(i)]));
        total = c.group ? Rounded(total + part) : Rounded(part + static_cast<float>(bias[static_cast<size_t>(j)]));
      }
      if (c.group) total = Rounded(total * static_cast<float>(tokens[static_cast<size_t>(i)]));
      want.push_back(total);
    }

  const HostTensor x1 = c.left_int4 ? Words(a, c.m, c.k, false) : HostTensor::From(DType::kInt8, {c.m, c.k}, a);
  const HostTensor x2 =
      c.right_int4 ? Words(b, c.k, c.n, c.along_columns) : HostTensor::From(DType::kInt8, {c.k, c.n}, b);
  const Shape per_group = c.group ? Shape({groups, c.n}) : Shape{c.n};
  const HostTensor scales = HostTensor::From(DType::kFloat32, per_group, scale);
  const HostTensor offsets =
      c.group ? HostTensor::From(DType::kFloat32, offset_per_column ? Shape{c.n} : per_group, offset) : HostTensor();
  const HostTensor biases = c.group ? HostTensor() : HostTensor::From(DType::kFloat32, {c.n}, bias);
  RunOptions options{.attributes = {{"output_dtype", kFloat16Code}},
                     .input_shapes = {x1.shape(), x2.shape(), scales.shape()}};
  if (c.group) options.attributes["group_sizes"] = std::vector<int64_t>{0, 0, c.group};
  if (c.packed) options.prepack = {1};
  const HostTensor y =
      RunOp("npu::NPUQuantMatmul", {x1, x2, scales, offsets, HostTensor::From(DType::kFloat32, {c.m}, tokens), biases},
            options)[0];
  CHECK(y.values() == HostTensor::From(DType::kFloat16, {c.m, c.n}, want).values());
}

TEST_CASE("npu_quant_matmul scales, biases and rounds in the stated order, with a constant weight or not") {
  for (const bool packed : {false, true})
    for (int64_t m : {1, 5, 33}) {
      Check({.m = m, .n = 40, .k = 67, .packed = packed});
      Check({.m = m, .n = 70, .k = 3000, .packed = packed});
      Check({.m = m, .n = 40, .k = 72, .left_int4 = true, .right_int4 = true, .packed = packed});
      Check(
          {.m = m, .n = 33, .k = 136, .left_int4 = true, .right_int4 = true, .along_columns = true, .packed = packed});
    }
}

TEST_CASE("npu_quant_matmul adds groups one after the other, with a constant weight or not") {
  for (const bool packed : {false, true})
    for (const bool left_int4 : {false, true})
      for (const bool along_columns : {false, true})
        for (int64_t m : {1, 5, 33}) {
          Check({m, 40, 96, 32, left_int4, true, along_columns, packed});
          Check({m, 72, 512, 256, left_int4, true, along_columns, packed});
          Check({m, 8, 8, 8, left_int4, true, along_columns, packed});
          // More groups than are unpacked at a time, and groups of more rows.
          Check({m, 24, 1056, 32, left_int4, true, along_columns, packed});
          Check({m, 24, 1200, 600, left_int4, true, along_columns, packed});
        }
}

TEST_CASE("npu_quant_matmul makes 0 of NaN and saturates infinities") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const HostTensor x1 = HostTensor::From(DType::kInt8, {1, 2}, {1, 1});
  const HostTensor x2 = HostTensor::From(DType::kInt8, {2, 4}, {1, 1, 1, 1, 0, 0, 0, 0});
  const HostTensor scale = HostTensor::From(DType::kFloat32, {4}, {nan, infinity, -infinity, 2.5});
  CHECK(RunOp("npu::NPUQuantMatmul", {x1, x2, scale})[0].values() == std::vector<double>{0, 127, -128, 2});
  const HostTensor sums =
      RunOp("npu::NPUQuantMatmul", {x1, x2, scale}, {.attributes = {{"output_dtype", kInt32Code}}})[0];
  CHECK(sums.values() == std::vector<double>{1, 1, 1, 1});
}

TEST_CASE("an output_dtype that the operator has not is refused with those that it has") {
  const HostTensor x1 = HostTensor::From(DType::kInt8, {1, 2}, {1, 1});
  const HostTensor x2 = HostTensor::From(DType::kInt8, {2, 1}, {1, 1});
  const HostTensor scale = HostTensor::From(DType::kFloat32, {1}, {1});
  CHECK_THROWS_WITH(RunOp("npu::NPUQuantMatmul", {x1, x2, scale}, {.attributes = {{"output_dtype", int64_t{29}}}}),
                    "[npu_quant_matmul] expected output_dtype to be the type code 2 (int8), 1 (float16), "
                    "27 (bfloat16) or 3 (int32), got 29");
}

TEST_CASE("a constant weight of words is read only at the depth that the model declares") {
  const Case c{.m = 2, .n = 8, .k = 64};
  Numbers numbers(7);
  const HostTensor weight = Words(numbers.Integers(c.k * c.n, -8, 8), c.k, c.n, true);
  const HostTensor scale = HostTensor::From(DType::kFloat32, {c.n}, numbers.Floats(c.n, 0.1, 1));
  TestNode node("npu::NPUQuantMatmul", {.input_shapes = {Shape({c.m, 8}), weight.shape(), scale.shape()}}, 3);
  REQUIRE(node.PrePack(1, weight));
  const HostTensor narrow = Words(numbers.Integers(c.m * 8, -8, 8), c.m, 8, false);
  CHECK_THROWS_WITH(
      node.Run({narrow, HostTensor(), scale}),
      "[npu_quant_matmul] expected x1 and x2 with K of 64 as the model declares it, got [2, 1] and [8, 8]");
}

TEST_CASE("npu_weight_quant_batchmatmul gives the same bits with a constant weight") {
  Numbers numbers(3);
  for (const bool int4 : {false, true})
    for (const bool along_columns : {false, true})
      for (int64_t m : {1, 33}) {
        const int64_t k = 96, n = 40, group = 32;
        const auto values = numbers.Integers(k * n, -8, 8);
        const HostTensor weight =
            int4 ? Words(values, k, n, along_columns) : HostTensor::From(DType::kInt8, {k, n}, values);
        const HostTensor x = HostTensor::Random(DType::kBFloat16, {m, k}, 5);
        const HostTensor scale =
            HostTensor::From(DType::kBFloat16, {k / group, n}, numbers.Floats(k / group * n, 0.1, 1));
        RunOptions options{.attributes = {{"antiquant_group_size", group}}, .input_shapes = {x.shape()}};
        const HostTensor plain = RunOp("npu::NPUWeightQuantBatchMatmulV2", {x, weight, scale}, options)[0];
        options.prepack = {1};
        const HostTensor packed = RunOp("npu::NPUWeightQuantBatchMatmulV2", {x, weight, scale}, options)[0];
        CHECK(plain.values() == packed.values());
      }
}

}  // namespace
