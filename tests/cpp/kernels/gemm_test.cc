// Matmul through Gemm and npu_linear: every layout and tail against a naive reference, at the active ISA level.
#include <cmath>
#include <limits>
#include <optional>

#include "doctest/doctest.h"
#include "ep/runtime/isa.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;
using npu::test::TestNode;

constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// A sum of k products in float32, in any order, is off by at most about k ulps of the sum of their magnitudes; then
// one rounding to the result's type.
// Machines whose tile registers multiply bfloat16 but not float16 drop the products of the operands' low parts, which
// are at most 2^-16 of each product.
double Bound(DType dtype, int64_t k, double magnitudes, double value) {
  const double half_ulp = dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24;
  const double smallest = dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-140;  // half a denormal
  const npu::CpuFeatures& features = npu::Features();
  const bool split = dtype == DType::kFloat16 && features.amx_bf16 && !features.amx_fp16;
  return ((static_cast<double>(k) + 2) * 0x1p-24 + (split ? 0x1p-16 : 0)) * magnitudes + half_ulp * std::fabs(value) +
         smallest;
}

struct GemmCase {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, packed = false;
  std::optional<Shape> c = std::nullopt;
  double alpha = 1.0, beta = 1.0;
};

void CheckGemm(DType dtype, const GemmCase& g) {
  CAPTURE(NameOf(dtype));
  CAPTURE(g.m);
  CAPTURE(g.n);
  CAPTURE(g.k);
  CAPTURE(g.trans_a);
  CAPTURE(g.trans_b);
  CAPTURE(g.packed);
  const HostTensor a = HostTensor::Random(dtype, g.trans_a ? Shape{g.k, g.m} : Shape{g.m, g.k}, 1);
  const HostTensor b = HostTensor::Random(dtype, g.trans_b ? Shape{g.n, g.k} : Shape{g.k, g.n}, 2);
  const HostTensor c = g.c ? HostTensor::Random(dtype, *g.c, 3) : HostTensor();
  const std::vector<double> av = a.values(), bv = b.values(), cv = c.values();
  RunOptions options{
      .attributes = {
          {"alpha", g.alpha}, {"beta", g.beta}, {"transA", int64_t{g.trans_a}}, {"transB", int64_t{g.trans_b}}}};
  if (g.packed) options.prepack = {1};
  const HostTensor y = RunOp("Gemm", {a, b, c}, options)[0];
  REQUIRE(y.shape() == Shape{g.m, g.n});
  REQUIRE(y.dtype() == dtype);

  const int64_t c_rows = c.shape().rank() == 2 ? c.shape()[0] : 1, c_columns = c.shape().rank() ? c.shape().back() : 1;
  int wrong = 0;
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0, magnitudes = 0;
      for (int64_t k = 0; k < g.k; ++k) {
        const double product = av[g.trans_a ? k * g.m + i : i * g.k + k] * bv[g.trans_b ? j * g.k + k : k * g.n + j];
        sum += product;
        magnitudes += std::fabs(product);
      }
      sum *= g.alpha;
      magnitudes *= std::fabs(g.alpha);
      if (c.present()) {
        const double added = g.beta * cv[(c_rows == 1 ? 0 : i) * c_columns + (c_columns == 1 ? 0 : j)];
        sum += added;
        magnitudes += std::fabs(added);
      }
      if (!(std::fabs(y[i * g.n + j] - sum) <= Bound(dtype, g.k, magnitudes, sum)) && wrong++ == 0)
        FAIL_CHECK("at ", i, ", ", j, ": ", y[i * g.n + j], " != ", sum);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Gemm matches a naive loop for odd shapes, types and transpositions, packed or not") {
  int turn = 0;
  for (DType dtype : kFloatTypes)
    for (int64_t m : {1, 2, 3, 6, 11, 12, 13, 17, 33})
      for (int64_t n : {1, 15, 16, 31, 32, 33, 70})
        for (int64_t k : {1, 2, 3, 15, 16, 17, 31, 32, 33, 65}) {
          // Every option occurs with every size, but not every triple of sizes with every combination of options.
          ++turn;
          CheckGemm(dtype, {m, n, k, (turn & 1) != 0, (turn & 2) != 0, (turn & 4) != 0});
        }
}

TEST_CASE("Gemm matches a naive loop when K, M and N are split into blocks") {
  for (DType dtype : kFloatTypes) {
    CheckGemm(dtype, {97, 70, 3000, false, true, true});
    CheckGemm(dtype, {40, 33, 2900, true, false, false});
    CheckGemm(dtype, {700, 20, 200, false, false, true});
    CheckGemm(dtype, {1, 900, 1111, false, true, true});
    CheckGemm(dtype, {1, 40, 20001, false, false, true});
    CheckGemm(dtype, {29, 40, 2048, false, false, true});  // page-aligned row strides are packed, others read in place
    CheckGemm(dtype, {5, 500, 700, false, true, false, Shape{500}, 0.5, 2.0});
    // Panels that are packed on the fly: several together, and once for threads that divide the rows.
    CheckGemm(dtype, {70, 1700, 40, false, false, false});
    CheckGemm(dtype, {130, 200, 50, false, true, false, Shape{130, 1}});
    CheckGemm(dtype, {130, 200, 2300, false, false, false});
    // More rows than one packed block holds: in one block of K, and in several.
    CheckGemm(dtype, {1100, 5, 1024, true, false, true});
    CheckGemm(dtype, {530, 5, 4096, false, false, true});
  }
}

TEST_CASE("a long K is summed in blocks, which bounds the rounding error") {
  constexpr int64_t kDepth = 1 << 19;
  const HostTensor a = HostTensor::From(DType::kFloat32, {5, kDepth}, std::vector<double>(5 * kDepth, 0.1));
  const HostTensor b = HostTensor::From(DType::kFloat32, {kDepth, 1}, std::vector<double>(kDepth, 1));
  // A single float32 accumulator would end 0.4 % too high.
  for (const double sum : RunOp("Gemm", {a, b})[0].values())
    CHECK(sum == doctest::Approx(static_cast<double>(0.1f) * kDepth).epsilon(2e-4));
}

TEST_CASE("Gemm with empty dimensions: an empty result, and C alone if K is 0") {
  for (DType dtype : kFloatTypes)
    for (bool packed : {false, true}) {
      CheckGemm(dtype, {0, 5, 3, false, false, packed});
      CheckGemm(dtype, {5, 0, 3, false, false, packed});
      CheckGemm(dtype, {3, 40, 0, false, false, packed});
      CheckGemm(dtype, {3, 40, 0, false, true, packed, Shape{40}, 1.0, 3.0});
      CheckGemm(dtype, {0, 0, 0, false, false, packed});
    }
}

TEST_CASE("Gemm adds C in every shape that broadcasts to the result") {
  for (DType dtype : kFloatTypes)
    for (const Shape& c : {Shape{}, Shape{1}, Shape{37}, Shape{1, 37}, Shape{14, 1}, Shape{14, 37}, Shape{1, 1}})
      for (bool packed : {false, true}) CheckGemm(dtype, {14, 37, 19, false, false, packed, c, -0.75, 1.5});
}

// Whole panels of columns may be stored in another way than the last columns.
TEST_CASE("Gemm stores equal columns alike, whole panels and parts of them") {
  const int64_t n = 64 + 16, repeated = 16;
  struct {
    DType dtype, products;
  } const types[] = {{DType::kFloat32, DType::kFloat32},
                     {DType::kFloat32, DType::kBFloat16},
                     {DType::kFloat16, DType::kFloat16},
                     {DType::kBFloat16, DType::kBFloat16}};
  for (const auto& [dtype, products] : types)
    for (int64_t m : {6, 70})
      for (int64_t k : {40, 700})
        for (const Shape& c : {Shape{}, Shape{n}, Shape{m, 1}, Shape{m, n}}) {
          CAPTURE(NameOf(dtype));
          CAPTURE(m);
          CAPTURE(k);
          CAPTURE(c.rank());
          const HostTensor a = HostTensor::Random(dtype, {m, k}, 1);
          HostTensor b = HostTensor::Random(dtype, {k, n}, 2);
          for (int64_t i = 0; i < k; ++i)
            for (int64_t j = 0; j < repeated; ++j) b.Set(i * n + 64 + j, b[i * n + j]);
          HostTensor added = c.rank() ? HostTensor::Random(dtype, c, 3) : HostTensor();
          if (c.rank() && c.back() == n)
            for (int64_t i = 0; i < c.Elements() / n; ++i)
              for (int64_t j = 0; j < repeated; ++j) added.Set(i * n + 64 + j, added[i * n + j]);
          RunOptions options{.attributes = {{"alpha", 0.7}, {"beta", 0.3}}, .float32_products = products};
          options.prepack = {1};
          const HostTensor y = RunOp("Gemm", {a, b, added}, options)[0];
          int wrong = 0;
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < repeated; ++j) wrong += y[i * n + 64 + j] != y[i * n + j];
          CHECK(wrong == 0);
        }
}

// Results of 32 MB and more may be stored past the caches.
TEST_CASE("Gemm stores a result that no cache holds like a small one") {
  const int64_t m = 256, n = 32768 + 16, k = 20, few = 32;
  // Integers, whose sums are exact in any order.
  const auto integers = [](const Shape& shape, uint64_t seed) {
    std::vector<double> values = HostTensor::Random(DType::kInt8, shape, seed, -8, 8).values();
    return HostTensor::From(DType::kFloat32, shape, values);
  };
  const HostTensor first = integers({few, k}, 1), b = integers({k, n}, 2), a(DType::kFloat32, {m, k});
  for (int64_t i = 0; i < m / few; ++i) std::copy_n(first.data<float>(), few * k, a.data<float>() + i * few * k);
  const RunOptions options{.float32_products = DType::kBFloat16, .prepack = {1}};
  const HostTensor large = RunOp("Gemm", {a, b}, options)[0], small = RunOp("Gemm", {first, b}, options)[0];
  for (int64_t i = 0; i < m / few; ++i)
    CHECK(std::equal(small.data<float>(), small.data<float>() + few * n, large.data<float>() + i * few * n));
}

// Each element is 1 + 2^-8 or near it: the largest low part that float16 has beside bfloat16.
TEST_CASE("Gemm matches within the bound where low parts of float16 are as large as they get") {
  const double most = 1 + 0x1p-8;
  for (int64_t m : {1, 16, 40}) {
    std::vector<double> a;
    for (int64_t i = 0; i < m; ++i) a.insert(a.end(), {most, -1.0});
    const HostTensor left = HostTensor::From(DType::kFloat16, {m, 2}, a);
    const HostTensor right = HostTensor::From(DType::kFloat16, {2, 1}, {most, 1 + 0x1p-7});
    // (1 + 2^-8)^2 - (1 + 2^-7) = 2^-16
    const double bound = Bound(DType::kFloat16, 2, most * most + 1 + 0x1p-7, 0x1p-16);
    for (const double value : RunOp("Gemm", {left, right})[0].values()) CHECK(std::fabs(value - 0x1p-16) <= bound);
  }
}

TEST_CASE("a packed weight works for any number of rows") {
  for (DType dtype : kFloatTypes) {
    const int64_t n = 75, k = 130;
    const HostTensor weight = HostTensor::Random(dtype, {n, k}, 5);
    TestNode node("npu::NPULinear");
    REQUIRE(node.PrePack(1, weight));
    for (int64_t m : {1, 2, 4, 5, 8, 16, 31, 64}) {
      CAPTURE(m);
      const HostTensor x = HostTensor::Random(dtype, {m, k}, static_cast<uint64_t>(m));
      const HostTensor y = node.Run({x, HostTensor()})[0];
      const HostTensor expected = RunOp("npu::NPULinear", {x, weight})[0];
      CHECK(y.values() == expected.values());
    }
  }
}

TEST_CASE("float32 matmul with a constant weight may round its operands to bfloat16") {
  for (const char* op : {"npu::NPULinear", "MatMul", "Gemm"})
    for (int64_t m : {1, 3, 16, 33})
      for (int64_t k : {1, 31, 130})
        for (bool exact : {true, false}) {  // exact: A is representable in bfloat16, so that only B is rounded
          const bool linear = op == std::string("npu::NPULinear");
          CAPTURE(op);
          CAPTURE(m);
          CAPTURE(k);
          const int64_t n = 75;
          const HostTensor halves = HostTensor::Random(DType::kBFloat16, {m, k}, 1);
          const HostTensor a = exact ? HostTensor::From(DType::kFloat32, {m, k}, halves.values())
                                     : HostTensor::Random(DType::kFloat32, {m, k}, 1);
          const HostTensor b = HostTensor::Random(DType::kFloat32, linear ? Shape{n, k} : Shape{k, n}, 2);
          const RunOptions options{.float32_products = DType::kBFloat16, .prepack = {1}};
          const HostTensor y = RunOp(op, {a, b}, options)[0];
          REQUIRE(y.dtype() == DType::kFloat32);
          const std::vector<double> av = a.values(), bv = b.values();
          const std::vector<double> rounded = HostTensor::From(DType::kBFloat16, b.shape(), bv).values();
          int wrong = 0, differ = 0;
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              double sum = 0, unrounded = 0, magnitudes = 0;
              for (int64_t l = 0; l < k; ++l) {
                const double x = av[i * k + l];
                const int64_t at = linear ? j * k + l : l * n + j;
                sum += x * rounded[at];
                unrounded += x * bv[at];
                magnitudes += std::fabs(x * bv[at]);
              }
              const double got = y[i * n + j];
              // The error bound of the provider option; if A is exact, only float32 roundings.
              if (exact ? !(std::fabs(got - sum) <= Bound(DType::kFloat32, k, magnitudes, sum))
                        : !(std::fabs(got - unrounded) <= 0x1p-7 * magnitudes * (1 + 0x1p-8)))
                ++wrong;
              differ += got != static_cast<float>(unrounded);
            }
          CHECK(wrong == 0);
          CHECK(differ > 0);
        }
}

TEST_CASE("a row of odd length does not read the first element of the next one") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t k : {1, 3, 17, 31}) {
    CAPTURE(k);
    std::vector<double> rows(static_cast<size_t>(2 * k), 1.0);
    rows[static_cast<size_t>(k)] = nan;
    const HostTensor a = HostTensor::From(DType::kFloat32, {2, k}, rows);
    const HostTensor b = HostTensor::From(DType::kFloat32, {k, 2}, std::vector<double>(static_cast<size_t>(2 * k), 1));
    const HostTensor y = RunOp("MatMul", {a, b}, {.float32_products = DType::kBFloat16, .prepack = {1}})[0];
    CHECK(y[0] == static_cast<double>(k));
    CHECK(y[1] == static_cast<double>(k));
    CHECK(std::isnan(y[2]));
  }
}

TEST_CASE("float32 matmul does not round its operands by default") {
  const HostTensor a = HostTensor::Of<float>({1, 1}, {1.0f + 0x1p-20f}), b = HostTensor::Of<float>({1, 1}, {1.0f});
  CHECK(RunOp("MatMul", {a, b}, {.prepack = {1}})[0][0] == 1.0 + 0x1p-20);
}

TEST_CASE("a packed matrix, packed by any of its consumers, serves as weight and as lookup table") {
  for (DType dtype : kFloatTypes)
    for (int first : {0, 1, 2}) {
      CAPTURE(NameOf(dtype));
      const int64_t n = 256, k = 96;
      const HostTensor rows = HostTensor::Random(dtype, {n, k}, 5), x = HostTensor::Random(dtype, {3, k}, 6);
      const HostTensor ids = HostTensor::Of<int64_t>({4}, {255, 0, 31, 32});
      RunOptions transposed;
      transposed.attributes = {{"transB", int64_t{1}}};
      TestNode gather("Gather", {}, 2), linear("npu::NPULinear", {}, 2), product("Gemm", transposed, 2);
      HostTensor panels = HostTensor::Random(dtype, {n, k}, 5);
      REQUIRE(gather.UsePanels(0, panels, first == 0));
      REQUIRE(linear.UsePanels(1, panels, first == 1));
      REQUIRE(product.UsePanels(1, panels, first == 2));
      CHECK(panels.values() != rows.values());
      CHECK(gather.Run({panels, ids})[0].values() == RunOp("Gather", {rows, ids})[0].values());
      RunOptions packed = transposed;
      packed.prepack = {1};
      const HostTensor expected = RunOp("Gemm", {x, rows}, packed)[0];
      CHECK(linear.Run({x, panels})[0].values() == expected.values());
      CHECK(product.Run({x, panels})[0].values() == expected.values());
    }
}

TEST_CASE("packed sharing is refused for partial panels and for operands that are not table rows") {
  const auto accepts = [](const char* type, const RunOptions& options, size_t input, Shape shape) {
    HostTensor matrix = HostTensor::Random(DType::kFloat32, shape, 5);
    return TestNode(type, options, 2).UsePanels(input, matrix, false);
  };
  RunOptions columns;
  columns.attributes = {{"axis", int64_t{1}}};
  CHECK(accepts("Gather", {}, 0, {64, 16}));
  CHECK_FALSE(accepts("Gather", {}, 0, {65, 16}));
  CHECK_FALSE(accepts("Gather", {}, 0, {2, 64, 16}));
  CHECK_FALSE(accepts("Gather", columns, 0, {64, 64}));
  CHECK_FALSE(accepts("Gemm", {}, 1, {64, 64}));
  CHECK(accepts("npu::NPULinear", {}, 1, {64, 16}));
  CHECK_FALSE(accepts("npu::NPULinear", {}, 0, {64, 16}));
}

TEST_CASE("NaN and infinities reach exactly their own rows and columns") {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : kFloatTypes)
    for (int64_t m : {1, 3, 14, 40})
      for (bool packed : {false, true}) {
        CAPTURE(NameOf(dtype));
        CAPTURE(m);
        const int64_t n = 37, k = 19;
        HostTensor a = HostTensor::Random(dtype, {m, k}, 1, 0.5, 1.0),
                   b = HostTensor::Random(dtype, {k, n}, 2, 0.5, 1.0);
        a.Set((m - 1) * k + k - 1, NAN);
        b.Set((k - 1) * n + n - 2, inf);
        if (m > 1) a.Set(0, 0.0), b.Set(n - 1, inf);  // 0 * inf
        RunOptions options;
        if (packed) options.prepack = {1};
        const HostTensor y = RunOp("Gemm", {a, b}, options)[0];
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const double value = y[i * n + j];
            if (i == m - 1 || (i == 0 && j == n - 1)) {
              CHECK(std::isnan(value));
            } else if (j == n - 2 || (m > 1 && j == n - 1)) {
              CHECK(value == inf);
            } else {
              CHECK(std::isfinite(value));
            }
          }
        }
      }
}

TEST_CASE("Gemm with beta = 0 does not read C") {
  const HostTensor a = HostTensor::Random(DType::kFloat32, {2, 3}, 1),
                   b = HostTensor::Random(DType::kFloat32, {3, 4}, 2);
  const HostTensor nans = HostTensor::From(DType::kFloat32, {4}, std::vector<double>(4, NAN));
  const HostTensor y = RunOp("Gemm", {a, b, nans}, {.attributes = {{"beta", 0.0}}})[0];
  CHECK(y.values() == RunOp("Gemm", {a, b})[0].values());
}

TEST_CASE("integer Gemm wraps; scaled results truncate toward zero and saturate") {
  const HostTensor a = HostTensor::Of<int32_t>({1, 2}, {1 << 30, 7}),
                   b = HostTensor::Of<int32_t>({2, 2}, {4, 1, 1, -2});
  CHECK(RunOp("Gemm", {a, b})[0].values() == std::vector<double>{7, (1 << 30) - 14});
  CHECK(RunOp("Gemm", {a, b}, {.attributes = {{"alpha", 0.5}}})[0].values() == std::vector<double>{3, (1 << 29) - 7});
  CHECK(RunOp("Gemm", {a, b}, {.attributes = {{"alpha", 1e30}}})[0].values() ==
        std::vector<double>{2147483647.0, 2147483647.0});
  const HostTensor c = HostTensor::Of<int32_t>({2}, {5, -5});
  CHECK(RunOp("Gemm", {a, b, c}, {.attributes = {{"beta", 2.0}, {"transB", int64_t{1}}}})[0].values() ==
        std::vector<double>{7 + 10, (1 << 30) - 14 - 10});
}

TEST_CASE("Gemm and npu_linear refuse mismatched operands and report why") {
  const auto tensor = [](const Shape& shape, DType dtype = DType::kFloat32) {
    return HostTensor::Random(dtype, shape, 1);
  };
  CHECK_THROWS_WITH(RunOp("Gemm", {tensor({2, 3}), tensor({4, 5})}),
                    "[Gemm] expected as many columns of A as rows of B, got [2, 3] and [4, 5]");
  CHECK_THROWS_WITH(RunOp("Gemm", {tensor({3}), tensor({3, 5})}),
                    "[Gemm] expected matrices A and B, got [3] and [3, 5]");
  CHECK_THROWS_WITH(RunOp("Gemm", {tensor({2, 3}), tensor({3, 5}), tensor({2})}),
                    "[Gemm] expected C to broadcast to [2, 5], got [2]");
  CHECK_THROWS_WITH(RunOp("Gemm", {tensor({1, 3}), tensor({3, 5}), tensor({2, 5})}),
                    "[Gemm] expected C to broadcast to [1, 5], got [2, 5]");
  CHECK_THROWS_WITH(RunOp("Gemm", {tensor({2, 3}), tensor({3, 5}, DType::kFloat16)}),
                    "[Gemm] expected inputs of one type, got float32, float16");
  CHECK_THROWS_WITH(RunOp("npu::NPULinear", {tensor({2, 3}), tensor({5, 4})}),
                    "[npu_linear] expected input [.., K] and weight [N, K], got [2, 3] and [5, 4]");
  CHECK_THROWS_WITH(RunOp("npu::NPULinear", {tensor({2, 3}), tensor({5, 3}), tensor({3})}),
                    "[npu_linear] expected a bias of shape [5], got [3]");
  CHECK_THROWS_WITH(RunOp("npu::NPULinear", {tensor({2, 3}, DType::kFloat16), tensor({5, 3}, DType::kFloat16),
                                             tensor({5}, DType::kBFloat16)}),
                    "[npu_linear] expected a bias of dtype float32 or float16, got bfloat16");
}

}  // namespace
