// Softmax and npu_scaled_masked_softmax against a naive reference in double.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// float32: the last bits of a sum; 16-bit types round a result of at most 1 once.
double ToleranceOf(DType dtype) { return dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 5e-4 : 4e-3; }

// Over the middle one of three axes.
std::vector<double> Naive(std::vector<double> x, int64_t outer, int64_t n, int64_t inner) {
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const auto at = [&](int64_t j) -> double& { return x[static_cast<size_t>((o * n + j) * inner + i)]; };
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = 0; j < n; ++j) max = std::max(max, at(j));
      for (int64_t j = 0; j < n; ++j) sum += std::exp(at(j) - max);
      for (int64_t j = 0; j < n; ++j) at(j) = std::exp(at(j) - max) / sum;
    }
  }
  return x;
}

void CheckClose(const HostTensor& got, const std::vector<double>& want) {
  REQUIRE(got.elements() == static_cast<int64_t>(want.size()));
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(got[static_cast<int64_t>(i)] - want[i]);
    if (!(error <= worst)) worst = error;
  }
  CHECK(worst <= ToleranceOf(got.dtype()));
}

TEST_CASE("Softmax: a single axis since opset 13, all trailing axes before") {
  const Shape shape{3, 5, 7, 300};
  for (DType dtype : kDTypes) {
    const HostTensor x = HostTensor::Random(dtype, shape, 3, -8, 8);
    for (int64_t axis = -4; axis < 4; ++axis) {
      const int a = static_cast<int>(axis < 0 ? axis + 4 : axis);
      INFO("axis ", axis, " of ", NameOf(dtype));
      const HostTensor y = RunOp("Softmax", {x}, {.attributes = {{"axis", axis}}, .since_version = 13})[0];
      CHECK(y.shape() == shape);
      CheckClose(y, Naive(x.values(), shape.Elements(0, a), shape[a], shape.Elements(a + 1, 4)));
      const HostTensor old = RunOp("Softmax", {x}, {.attributes = {{"axis", axis}}, .since_version = 11})[0];
      CheckClose(old, Naive(x.values(), shape.Elements(0, a), shape.Elements(a, 4), 1));
    }
    CheckClose(RunOp("Softmax", {x}, {.since_version = 13})[0], Naive(x.values(), 105, 300, 1));
    CheckClose(RunOp("Softmax", {x}, {.since_version = 1})[0], Naive(x.values(), 3, 10500, 1));
  }
}

TEST_CASE("Softmax: in place, empty, one element, infinities") {
  for (DType dtype : kDTypes) {
    const HostTensor x = HostTensor::Random(dtype, Shape{40, 33}, 4, -8, 8);
    const std::vector<double> want = Naive(x.values(), 40, 33, 1);
    CheckClose(RunOp("Softmax", {x}, {.since_version = 13, .alias = {{0, 0}}})[0], want);
    CHECK(RunOp("Softmax", {HostTensor(dtype, Shape{4, 0})}, {.since_version = 13})[0].shape() == Shape{4, 0});
    CHECK(RunOp("Softmax", {HostTensor::From(dtype, Shape{1}, {5.0})}, {.since_version = 13})[0][0] == 1.0);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const HostTensor x =
      HostTensor::From(DType::kFloat32, Shape{2, 3}, {0, -infinity, 0, -infinity, -infinity, -infinity});
  const HostTensor y = RunOp("Softmax", {x}, {.since_version = 13})[0];
  CHECK(y[0] == doctest::Approx(0.5));
  CHECK(y[1] == 0.0);
  for (int64_t i = 3; i < 6; ++i) CHECK(std::isnan(y[i]));
}

TEST_CASE("Softmax: an axis outside the rank is refused") {
  const HostTensor x(DType::kFloat32, Shape{2, 2});
  CHECK_THROWS_AS(RunOp("Softmax", {x}, {.attributes = {{"axis", int64_t{2}}}, .since_version = 13}), Error);
  CHECK_THROWS_AS(RunOp("Softmax", {x}, {.attributes = {{"axis", int64_t{-3}}}, .since_version = 13}), Error);
}

TEST_CASE("npu_scaled_masked_softmax: masks broadcast over any axis") {
  const Shape shape{2, 3, 5, 70};
  const std::vector<std::vector<int64_t>> masks = {{2, 3, 5, 70}, {2, 1, 5, 70}, {1, 1, 5, 70}, {2, 1, 1, 70}, {5, 70},
                                                   {70},          {1, 3, 1, 1},  {2, 3, 5, 1},  {1},           {}};
  for (DType dtype : kDTypes) {
    const HostTensor x = HostTensor::Random(dtype, shape, 5, -8, 8);
    for (const std::vector<int64_t>& dims : masks) {
      HostTensor flags(DType::kBool, Shape(dims));
      const HostTensor random = HostTensor::Random(DType::kFloat32, Shape(dims), 7, 0, 1);
      for (int64_t i = 0; i < flags.elements(); ++i) flags.Set(i, random[i] < 0.4 ? 1 : 0);
      std::vector<double> logits = x.values();
      for (int64_t i = 0; i < x.elements(); ++i) {
        int64_t index = 0, stride = 1, rest = i;
        for (int axis = 3, m = static_cast<int>(dims.size()) - 1; axis >= 0; --axis, --m) {
          const int64_t at = rest % shape[axis];
          rest /= shape[axis];
          if (m < 0) continue;
          index += (dims[static_cast<size_t>(m)] == 1 ? 0 : at) * stride;
          stride *= dims[static_cast<size_t>(m)];
        }
        double& logit = logits[static_cast<size_t>(i)];
        logit = flags[index] != 0 ? -10000.0 : logit * 0.5;
      }
      INFO("mask of rank ", dims.size());
      CheckClose(RunOp("npu::NPUScaledMaskedSoftmax", {x, flags}, {.attributes = {{"scale", 0.5}}})[0],
                 Naive(logits, 30, 70, 1));
    }
  }
}

TEST_CASE("npu_scaled_masked_softmax: bad arguments are refused") {
  const auto error = [](const Shape& x, const Shape& mask, int64_t triu = 0) -> std::string {
    try {
      RunOp("npu::NPUScaledMaskedSoftmax", {HostTensor(DType::kFloat32, x), HostTensor(DType::kBool, mask)},
            {.attributes = {{"fixed_triu_mask", triu}}});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error({2, 4}, {2, 3}).find("[npu_scaled_masked_softmax] expected a mask that broadcasts") == 0);
  CHECK(error({4}, {1, 4}).find("[npu_scaled_masked_softmax] expected a mask that broadcasts") == 0);
  CHECK(error({2, 4}, {2, 0}).find("[npu_scaled_masked_softmax] expected a mask that broadcasts") == 0);
  CHECK(error({}, {}).find("[npu_scaled_masked_softmax] expected x of rank >= 1") == 0);
  CHECK(error({2, 4}, {2, 4}, 1).find("[npu_scaled_masked_softmax] expected fixed_triu_mask False") == 0);
  CHECK(error({0, 4}, {1, 4}) == "");
}

}  // namespace
}  // namespace npu::test
