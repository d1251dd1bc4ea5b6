// The kernels behind torch's cdist, its gradient, histc, cummax and cummin.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST_CASE("pairwise distances: every norm, and gradients against finite differences") {
  const HostTensor x = HostTensor::Random(DType::kFloat64, {2, 3, 5}, 1),
                   y = HostTensor::Random(DType::kFloat64, {2, 4, 5}, 2);
  const HostTensor weight = HostTensor::Random(DType::kFloat64, {2, 3, 4}, 3);
  const auto distance = [](const std::vector<double>& a, size_t i, const std::vector<double>& b, size_t j, double p) {
    double sum = 0;
    for (size_t k = 0; k < 5; ++k) {
      const double d = std::fabs(a[i * 5 + k] - b[j * 5 + k]);
      sum = p == kInfinity ? std::fmax(sum, d) : sum + (p == 0 ? (d != 0 ? 1.0 : 0.0) : std::pow(d, p));
    }
    return p == 0 || p == kInfinity ? sum : std::pow(sum, 1 / p);
  };
  for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInfinity}) {
    CAPTURE(p);
    const RunOptions norm = {.attributes = {{"p", p}}};
    const HostTensor distances = RunOp("npu.aten::PairwiseDistance", {x, y}, norm)[0];
    const HostTensor gradient = RunOp("npu.aten::PairwiseDistanceGrad", {x, y, weight, distances}, norm)[0];
    std::vector<double> a = x.values();
    const std::vector<double> b = y.values();
    for (int64_t i = 0; i < distances.elements(); ++i)
      CHECK(distances[i] ==
            doctest::Approx(distance(a, static_cast<size_t>(i / 4), b, static_cast<size_t>(i / 12 * 4 + i % 4), p))
                .epsilon(1e-12));
    for (size_t e = 0; e < a.size(); ++e) {
      constexpr double kStep = 1e-6;
      const size_t row = e / 5;
      const auto loss = [&](double step) {
        std::vector<double> moved = a;
        moved[e] += step;
        double sum = 0;
        for (size_t j = 0; j < 4; ++j)
          sum += weight[static_cast<int64_t>(row * 4 + j)] * distance(moved, row, b, row / 3 * 4 + j, p);
        return sum;
      };
      CHECK(gradient[static_cast<int64_t>(e)] ==
            doctest::Approx((loss(kStep) - loss(-kStep)) / (2 * kStep)).epsilon(1e-5));
    }
  }
}

TEST_CASE("pairwise distances: bad shapes and norms are refused") {
  const auto matrix = [](const Shape& shape) { return HostTensor::Random(DType::kFloat32, shape, 1); };
  const auto run = [](const std::vector<HostTensor>& inputs, double p = 2) {
    return RunOp("npu.aten::PairwiseDistance", inputs, {.attributes = {{"p", p}}});
  };
  CHECK_THROWS_WITH_AS(run({matrix({2, 3, 5}), matrix({2, 3, 4})}), doctest::Contains("[cdist] expected first"), Error);
  CHECK_THROWS_WITH_AS(run({matrix({2, 3, 5}), matrix({1, 3, 5})}), doctest::Contains("[cdist] expected first"), Error);
  CHECK_THROWS_WITH_AS(run({matrix({3, 5}), matrix({3, 5})}), doctest::Contains("[cdist] expected first"), Error);
  for (const double p : {-1.0, std::nan("")})
    CHECK_THROWS_WITH_AS(run({matrix({2, 3, 5}), matrix({2, 3, 5})}, p), doctest::Contains("expected p of 0"), Error);
  CHECK_THROWS_WITH_AS(RunOp("npu.aten::PairwiseDistanceGrad",
                             {matrix({1, 3, 5}), matrix({1, 4, 5}), matrix({1, 3, 4}), matrix({1, 4, 4})}),
                       doctest::Contains("[cdist_backward] expected gradients and distances"), Error);
}

HostTensor Histogram(const HostTensor& x, int64_t bins, double low, double high) {
  return RunOp("npu.aten::Histogram", {x, HostTensor::Of<int64_t>({}, {bins}), HostTensor::Of<double>({}, {low}),
                                       HostTensor::Of<double>({}, {high})})[0];
}

TEST_CASE("histogram: counts values within the bounds and never writes past the last bin") {
  const HostTensor x = HostTensor::From(DType::kFloat64, {6}, {0, 1, 2, 4, 5, NAN});
  CHECK(Histogram(x, 2, 0, 4).values() == std::vector<double>{2, 2});
  // The distance between the bounds is infinite.
  const HostTensor wide = HostTensor::From(DType::kFloat64, {3}, {-1.7e308, 0, 1.7e308});
  double all = 0;
  for (const double count : Histogram(wide, 3, 0, 0).values()) all += count;
  CHECK(all == 3);
  // 1e300 less 1 is 1e300.
  CHECK(Histogram(HostTensor::From(DType::kFloat64, {2}, {1e300, 1e300}), 3, 0, 0).values() ==
        std::vector<double>{0, 0, 2});
  CHECK(Histogram(HostTensor(DType::kFloat32, {0}), 2, 0, 0).values() == std::vector<double>{0, 0});
  for (const double bad : {kInfinity, std::nan("")}) {
    CHECK_THROWS_WITH_AS(Histogram(x, 2, 0, bad), doctest::Contains("[histc] expected a finite range"), Error);
    CHECK_THROWS_WITH_AS(Histogram(HostTensor::From(DType::kFloat64, {2}, {0, bad}), 2, 0, 0),
                         doctest::Contains("[histc] expected finite numbers"), Error);
  }
  CHECK_THROWS_WITH_AS(Histogram(x, 2, 1, 0), doctest::Contains("[histc] expected a finite range"), Error);
  for (const int64_t bins : {int64_t{0}, INT64_MIN})
    CHECK_THROWS_WITH_AS(Histogram(x, bins, 0, 1), doctest::Contains("more than 0 bins"), Error);
}

TEST_CASE("cummax and cummin: ties take the last index and NaN propagates, for contiguous and strided axes") {
  for (const int64_t inner : {1, 3, 300}) {
    CAPTURE(inner);
    const std::vector<double> line = {2, 3, 3, 1, NAN, 9};
    HostTensor x(DType::kFloat32, {6, inner});
    for (int64_t i = 0; i < x.elements(); ++i) x.Set(i, line[static_cast<size_t>(i / inner)]);
    const std::vector<HostTensor> got =
        RunOp("npu.aten::CumMax", {x}, {.attributes = {{"axis", int64_t{0}}}, .outputs = 2});
    const std::vector<double> values = {2, 3, 3, 3, NAN, NAN}, places = {0, 1, 2, 2, 4, 4};
    for (int64_t i = 0; i < x.elements(); ++i) {
      const auto at = static_cast<size_t>(i / inner);
      CHECK((got[0][i] == values[at] || (std::isnan(values[at]) && std::isnan(got[0][i]))));
      CHECK(got[1][i] == places[at]);
    }
  }
  for (const int64_t axis : {1, -2})
    CHECK_THROWS_WITH_AS(RunOp("npu.aten::CumMin", {HostTensor::Random(DType::kInt8, {4}, 1)},
                               {.attributes = {{"axis", axis}}, .outputs = 2}),
                         doctest::Contains("axis"), Error);
}

}  // namespace
}  // namespace npu::test
