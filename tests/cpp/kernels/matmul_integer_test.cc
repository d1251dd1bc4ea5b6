// The matrix unit on 8-bit integers through MatMulInteger: exact, at the ISA level in force.
#include <cstdint>
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;

// All values of the type, so that the extreme products occur.
HostTensor Bytes(DType dtype, const Shape& shape, uint64_t seed) {
  const double low = dtype == DType::kInt8 ? -128 : 0;
  std::vector<double> values;
  uint64_t state = seed;
  for (int64_t i = 0; i < shape.Elements(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(low + static_cast<double>(state >> 56));
  }
  return HostTensor::From(dtype, shape, values);
}

struct Case {
  int64_t m, n, k;
  DType a = DType::kInt8, b = DType::kInt8;
  bool packed = false;
  int zeros = 0;  // 0: none, 1: one for each operand, 2: one for each row and column
};

void Check(const Case& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(NameOf(c.a));
  CAPTURE(NameOf(c.b));
  CAPTURE(c.packed);
  CAPTURE(c.zeros);
  const HostTensor a = Bytes(c.a, {c.m, c.k}, 1), b = Bytes(c.b, {c.k, c.n}, 2);
  const HostTensor a_zero = c.zeros == 0 ? HostTensor() : Bytes(c.a, {c.zeros == 1 ? 1 : c.m}, 3);
  const HostTensor b_zero = c.zeros == 0 ? HostTensor() : Bytes(c.b, {c.zeros == 1 ? 1 : c.n}, 4);
  RunOptions options;
  if (c.packed) options.prepack = {1};
  const HostTensor y = RunOp("MatMulInteger", {a, b, a_zero, b_zero}, options)[0];
  REQUIRE(y.shape() == Shape{c.m, c.n});
  REQUIRE(y.dtype() == DType::kInt32);
  const auto integers = [](const HostTensor& t) {
    const std::vector<double> values = t.values();
    return std::vector<int64_t>(values.begin(), values.end());
  };
  const std::vector<int64_t> av = integers(a), bv = integers(b);
  std::vector<int64_t> az(1), bz(1);
  if (c.zeros != 0) az = integers(a_zero), bz = integers(b_zero);
  int wrong = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < c.k; ++k)
        sum += (av[i * c.k + k] - az[c.zeros == 2 ? i : 0]) * (bv[k * c.n + j] - bz[c.zeros == 2 ? j : 0]);
      if (static_cast<int64_t>(y[i * c.n + j]) != sum && wrong++ == 0)
        FAIL_CHECK("at ", i, ", ", j, ": ", y[i * c.n + j], " != ", sum);
    }
  CHECK(wrong == 0);
}

TEST_CASE("MatMulInteger matches a naive loop for odd shapes, types and zero points, packed or not") {
  int turn = 0;
  for (int64_t m : {1, 2, 3, 4, 5, 8, 11, 12, 13, 17, 33})
    for (int64_t n : {1, 15, 16, 31, 32, 33, 70})
      for (int64_t k : {1, 2, 3, 4, 5, 31, 63, 64, 65, 130}) {
        ++turn;
        Check({m, n, k, turn & 1 ? DType::kInt8 : DType::kUInt8, turn & 2 ? DType::kInt8 : DType::kUInt8,
               (turn & 4) != 0, turn % 3});
      }
}

TEST_CASE("MatMulInteger matches a naive loop when K, M and N are split into blocks") {
  for (DType a : {DType::kInt8, DType::kUInt8})
    for (DType b : {DType::kInt8, DType::kUInt8})
      for (bool packed : {false, true}) {
        Check({97, 70, 9000, a, b, packed, 2});
        Check({1, 40, 40001, a, b, packed, 1});
        Check({700, 20, 200, a, b, packed, 2});
        Check({70, 5, 20000, a, b, packed, 0});
      }
}

TEST_CASE("QGemm multiplies by a B that lies by columns as by one that lies by rows, packed or not") {
  const HostTensor one = HostTensor::From(DType::kFloat32, {}, {1});
  int turn = 0;
  for (DType b_type : {DType::kInt8, DType::kUInt8})
    for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 70})
      for (int64_t k : {1, 3, 4, 6, 8, 63, 64, 68, 130, 131}) {
        CAPTURE(NameOf(b_type));
        CAPTURE(n);
        CAPTURE(k);
        const HostTensor a = Bytes(DType::kUInt8, {5, k}, 1), b = Bytes(b_type, {k, n}, 2);
        const HostTensor a_zero = Bytes(DType::kUInt8, {}, 3), b_zero = Bytes(b_type, {}, 4);
        const std::vector<double> values = b.values();
        std::vector<double> columns;
        for (int64_t j = 0; j < n; ++j)
          for (int64_t i = 0; i < k; ++i) columns.push_back(values[i * n + j]);
        const std::vector<double> rows = RunOp("com.microsoft::QGemm", {a, one, a_zero, b, one, b_zero})[0].values();
        RunOptions options{.attributes = {{"transB", int64_t{1}}}};
        if (++turn % 2 == 0) options.prepack = {3};
        const HostTensor transposed = HostTensor::From(b_type, {n, k}, columns);
        CHECK(RunOp("com.microsoft::QGemm", {a, one, a_zero, transposed, one, b_zero}, options)[0].values() == rows);
      }
}

TEST_CASE("MatMulInteger of empty operands: zeros if K is 0, for any zero points") {
  for (bool packed : {false, true}) {
    Check({3, 40, 0, DType::kUInt8, DType::kUInt8, packed, 2});
    Check({0, 4, 5, DType::kInt8, DType::kInt8, packed, 1});
    Check({4, 0, 5, DType::kInt8, DType::kInt8, packed, 1});
  }
}

TEST_CASE("MatMulInteger refuses zero points of another dtype or a wrong shape") {
  const HostTensor a = Bytes(DType::kInt8, {2, 3}, 1), b = Bytes(DType::kUInt8, {3, 4}, 2);
  CHECK_THROWS_WITH(RunOp("MatMulInteger", {a, b, Bytes(DType::kUInt8, {1}, 3)}),
                    "[MatMulInteger] expected a_zero_point of its operand's type int8, got uint8");
  CHECK_THROWS_WITH(RunOp("MatMulInteger", {a, b, Bytes(DType::kInt8, {3}, 3)}),
                    "[MatMulInteger] expected a_zero_point to be a scalar or one for each of 2 rows, got [3]");
  CHECK_THROWS_WITH(RunOp("MatMulInteger", {a, b, HostTensor(), Bytes(DType::kUInt8, {2, 4}, 3)}),
                    "[MatMulInteger] expected b_zero_point to be a scalar, [4] or [1, 4], got [2, 4]");
}

}  // namespace
