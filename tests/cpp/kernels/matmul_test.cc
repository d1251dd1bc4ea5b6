#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;

// numpy.matmul, by its definition: pad ranks with ones, then index.
std::vector<double> Expected(const HostTensor& a, const HostTensor& b, const Shape& batch, int64_t m, int64_t k,
                             int64_t n) {
  const std::vector<double> av = a.values(), bv = b.values();
  std::vector<double> out;
  std::vector<int64_t> index(static_cast<size_t>(batch.rank()), 0);
  const auto offset = [&](const Shape& s) {
    const int own = std::max(0, s.rank() - 2);
    int64_t matrix = 0;
    for (int axis = 0; axis < own; ++axis)
      matrix = matrix * s[axis] + (s[axis] == 1 ? 0 : index[static_cast<size_t>(batch.rank() - own + axis)]);
    return matrix;
  };
  for (int64_t entry = 0; entry < batch.Elements(); ++entry) {
    const int64_t a0 = offset(a.shape()) * m * k, b0 = offset(b.shape()) * k * n;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < k; ++x) sum += av[a0 + i * k + x] * bv[b0 + x * n + j];
        out.push_back(sum);
      }
    for (int axis = batch.rank() - 1; axis >= 0 && ++index[static_cast<size_t>(axis)] == batch[axis]; --axis)
      index[static_cast<size_t>(axis)] = 0;
  }
  return out;
}

struct Case {
  Shape a, b, y, batch;
  int64_t m, k, n;
};

const Case kCases[] = {
    {{3, 4}, {4, 5}, {3, 5}, {}, 3, 4, 5},
    {{4}, {4, 5}, {5}, {}, 1, 4, 5},
    {{3, 4}, {4}, {3}, {}, 3, 4, 1},
    {{4}, {4}, {}, {}, 1, 4, 1},
    {{2, 3, 4}, {4}, {2, 3}, {2}, 3, 4, 1},
    {{4}, {2, 4, 5}, {2, 5}, {2}, 1, 4, 5},
    {{2, 3, 4}, {4, 5}, {2, 3, 5}, {2}, 3, 4, 5},
    {{2, 3, 4}, {1, 4, 5}, {2, 3, 5}, {2}, 3, 4, 5},
    {{3, 4}, {2, 4, 5}, {2, 3, 5}, {2}, 3, 4, 5},
    {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}, {2}, 3, 4, 5},
    {{2, 1, 3, 4}, {1, 6, 4, 5}, {2, 6, 3, 5}, {2, 6}, 3, 4, 5},
    {{6, 3, 4}, {2, 1, 4, 5}, {2, 6, 3, 5}, {2, 6}, 3, 4, 5},
    {{2, 9, 17, 33}, {2, 9, 33, 40}, {2, 9, 17, 40}, {2, 9}, 17, 33, 40},
    {{3, 0, 4}, {4, 5}, {3, 0, 5}, {3}, 0, 4, 5},
    {{0, 3, 4}, {0, 4, 5}, {0, 3, 5}, {0}, 3, 4, 5},
    {{2, 3, 0}, {2, 0, 5}, {2, 3, 5}, {2}, 3, 0, 5},
    {{3, 200, 150}, {3, 150, 90}, {3, 200, 90}, {3}, 200, 150, 90},
};

TEST_CASE("MatMul follows numpy's rules for every rank and broadcast") {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32, DType::kInt64,
                      DType::kUInt32, DType::kUInt64}) {
    for (const Case& c : kCases) {
      CAPTURE(NameOf(dtype));
      CAPTURE(c.a);
      CAPTURE(c.b);
      // Small integers: exact sums in every type except the 16-bit floats, which round them once.
      const double low = dtype == DType::kUInt32 || dtype == DType::kUInt64 ? 0.0 : -4.0;
      HostTensor a = HostTensor::Random(DType::kInt32, c.a, 1, low, 5.0),
                 b = HostTensor::Random(DType::kInt32, c.b, 2, low, 5.0);
      a = HostTensor::From(dtype, c.a, a.values());
      b = HostTensor::From(dtype, c.b, b.values());
      const std::vector<double> expected =
          HostTensor::From(dtype, c.y, Expected(a, b, c.batch, c.m, c.k, c.n)).values();
      for (bool packed : {false, true}) {
        RunOptions options;
        if (packed) options.prepack = {1};
        const HostTensor y = RunOp("MatMul", {a, b}, options)[0];
        CHECK(y.shape() == c.y);
        CHECK(y.dtype() == dtype);
        CHECK(y.values() == expected);
      }
    }
  }
}

TEST_CASE("MatMul of integers wraps") {
  const HostTensor a = HostTensor::Of<int64_t>({1, 2}, {INT64_C(1) << 62, 3}), b = HostTensor::Of<int64_t>({2}, {4, 5});
  CHECK(RunOp("MatMul", {a, b})[0].data<int64_t>()[0] == 15);
}

TEST_CASE("MatMul of float64 keeps double precision") {
  const HostTensor a = HostTensor::Of<double>({1, 2}, {1.0, 1e-12}), b = HostTensor::Of<double>({2, 1}, {1.0, 1.0});
  CHECK(RunOp("MatMul", {a, b})[0][0] == 1.0 + 1e-12);
}

TEST_CASE("MatMul refuses mismatched operands and reports why") {
  const auto tensor = [](const Shape& shape, DType dtype = DType::kFloat32) {
    return HostTensor::Random(dtype, shape, 1);
  };
  CHECK_THROWS_WITH(
      RunOp("MatMul", {tensor({2, 3}), tensor({4, 5})}),
      "[MatMul] expected as many columns of the first operand as rows of the second, got [2, 3] and [4, 5]");
  CHECK_THROWS_WITH(RunOp("MatMul", {tensor({}), tensor({4, 5})}),
                    "[MatMul] expected operands of rank >= 1, got [] and [4, 5]");
  CHECK_THROWS_AS(RunOp("MatMul", {tensor({2, 3, 4}), tensor({3, 4, 5})}), npu::Error);
  CHECK_THROWS_WITH(RunOp("MatMul", {tensor({2, 3}), tensor({3, 5}, DType::kFloat64)}),
                    "[MatMul] expected operands of one type, got float32 and float64");
}

}  // namespace
