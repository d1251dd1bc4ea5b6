// The gradients of GridSample: against finite differences, and refused arguments.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

using Named = std::map<std::string, Attributes::Value>;

// The sum of the results weighted by y_grad.
double Loss(const HostTensor& x, const HostTensor& grid, const HostTensor& y_grad, const Named& attributes) {
  const std::vector<double> y = RunOp("GridSample", {x, grid}, {.attributes = attributes})[0].values();
  const std::vector<double> by = y_grad.values();
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * by[i];
  return sum;
}

void CheckSlopes(const HostTensor& gradient, const HostTensor& at, const auto& loss) {
  constexpr double kStep = 1e-6;
  const std::vector<double> values = at.values(), slopes = gradient.values();
  REQUIRE(slopes.size() == values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<double> up = values, down = values;
    up[i] += kStep;
    down[i] -= kStep;
    const double slope = (loss(HostTensor::From(DType::kFloat64, at.shape(), up)) -
                          loss(HostTensor::From(DType::kFloat64, at.shape(), down))) /
                         (2 * kStep);
    CHECK(slopes[i] == doctest::Approx(slope).epsilon(1e-6).scale(10));
  }
}

TEST_CASE("grid sample: gradients match finite differences") {
  struct Case {
    Shape x, grid, y;
  };
  const std::vector<Case> cases = {{{2, 2, 5}, {2, 3, 1}, {2, 2, 3}},
                                   {{2, 2, 4, 5}, {2, 2, 3, 2}, {2, 2, 2, 3}},
                                   {{1, 2, 3, 4, 5}, {1, 2, 1, 2, 3}, {1, 2, 2, 1, 2}}};
  for (const Case& c : cases) {
    for (const char* mode : {"linear", "nearest", "cubic"}) {
      for (const char* padding : {"zeros", "border", "reflection"}) {
        for (const int64_t align : {0, 1}) {
          CAPTURE(c.x);
          CAPTURE(mode);
          CAPTURE(padding);
          CAPTURE(align);
          const Named attributes = {
              {"mode", std::string(mode)}, {"padding_mode", std::string(padding)}, {"align_corners", align}};
          const HostTensor x = HostTensor::Random(DType::kFloat64, c.x, 1);
          const HostTensor grid = HostTensor::Random(DType::kFloat64, c.grid, 2, -2, 2);
          const HostTensor y_grad = HostTensor::Random(DType::kFloat64, c.y, 3);
          const std::vector<HostTensor> gradients =
              RunOp("npu.aten::GridSampleGrad", {y_grad, x, grid}, {.attributes = attributes, .outputs = 2});
          CheckSlopes(gradients[0], grid, [&](const HostTensor& g) { return Loss(x, g, y_grad, attributes); });
          CheckSlopes(gradients[1], x, [&](const HostTensor& image) { return Loss(image, grid, y_grad, attributes); });
        }
      }
    }
  }
}

TEST_CASE("grid sample: no coordinate accesses memory outside the input or its gradient") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<double> places = {nan, inf, -inf, 1e30, -1e30, 3e38, 9.3e18, -9.3e18, 1 + 1e-7, 0};
  std::vector<double> points;
  for (const double a : places)
    for (const double b : places) points.insert(points.end(), {a, b});
  const auto count = static_cast<int64_t>(points.size() / 2);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const HostTensor grid = HostTensor::From(dtype, {1, 1, count, 2}, points);
    const HostTensor x = HostTensor::Random(dtype, {1, 3, 2, 3}, 1),
                     y_grad = HostTensor::Random(dtype, {1, 3, 1, count}, 2);
    for (const char* mode : {"linear", "nearest", "cubic"}) {
      for (const char* padding : {"zeros", "border", "reflection"}) {
        for (const int64_t align : {0, 1}) {
          const Named attributes = {
              {"mode", std::string(mode)}, {"padding_mode", std::string(padding)}, {"align_corners", align}};
          const std::vector<HostTensor> gradients =
              RunOp("npu.aten::GridSampleGrad", {y_grad, x, grid}, {.attributes = attributes, .outputs = 2});
          if (std::string(mode) == "cubic") continue;  // the weights of an infinite position are undefined
          for (const HostTensor& gradient : gradients)
            for (const double value : gradient.values()) CHECK(std::isfinite(value));
        }
      }
    }
  }
}

TEST_CASE("grid sample: mismatched operands of the gradient are refused") {
  const HostTensor x = HostTensor::Random(DType::kFloat32, {2, 3, 4, 5}, 1);
  const HostTensor grid = HostTensor::Random(DType::kFloat32, {2, 6, 7, 2}, 2);
  const HostTensor y_grad = HostTensor::Random(DType::kFloat32, {2, 3, 6, 7}, 3);
  const auto refused = [](const std::vector<HostTensor>& in, const std::string& message, const Named& attributes = {}) {
    CHECK_THROWS_WITH_AS(RunOp("npu.aten::GridSampleGrad", in, {.attributes = attributes, .outputs = 2}),
                         doctest::Contains(message.c_str()), Error);
  };
  const auto of = [](DType dtype, const Shape& shape) { return HostTensor::Random(dtype, shape, 4); };
  refused({of(DType::kFloat32, {2, 3, 7, 6}), x, grid}, "expected a gradient float32 of shape [2, 3, 6, 7]");
  refused({of(DType::kFloat64, {2, 3, 6, 7}), x, grid}, "expected a gradient float32");
  refused({y_grad, x, of(DType::kFloat64, {2, 6, 7, 2})}, "expected a grid of float32");
  refused({y_grad, x, of(DType::kFloat32, {1, 6, 7, 2})}, "expected a grid of rank 4 with 2 images and 2 coordinates");
  refused({y_grad, x, of(DType::kFloat32, {2, 6, 7, 3})}, "expected a grid");
  refused({y_grad, x, of(DType::kFloat32, {2, 7, 2})}, "expected a grid");
  refused({y_grad, of(DType::kFloat32, {2, 3, 0, 5}), grid}, "non-empty spatial dimensions");
  refused({y_grad, of(DType::kFloat32, {2, 3}), grid}, "1 to 3 spatial dimensions");
  refused({y_grad, of(DType::kFloat32, {2, 3, 1, 1, 1, 1}), grid}, "1 to 3 spatial dimensions");
  refused({y_grad, x, grid}, "expected mode linear", {{"mode", std::string("area")}});
  refused({y_grad, x, grid}, "expected padding_mode", {{"padding_mode", std::string("wrap")}});
}

TEST_CASE("grid sample: an empty grid gives a zero gradient of the input") {
  const HostTensor x = HostTensor::Random(DType::kFloat16, {1, 2, 3, 4}, 1);
  const HostTensor none = HostTensor::Random(DType::kFloat16, {1, 0, 7, 2}, 2);
  const std::vector<HostTensor> gradients = RunOp(
      "npu.aten::GridSampleGrad", {HostTensor::Random(DType::kFloat16, {1, 2, 0, 7}, 3), x, none}, {.outputs = 2});
  CHECK(gradients[0].shape() == none.shape());
  for (const double value : gradients[1].values()) CHECK(value == 0);
}

}  // namespace
}  // namespace npu::test
