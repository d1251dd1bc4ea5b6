// Reductions against plain loops, over random shapes and axes. Values over dtypes: tests/kernels/test_reduce.py.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "tests/cpp/support/test_context.h"

namespace {

using namespace npu;
using namespace npu::test;

TEST_CASE("reduce: every subset of axes of random shapes") {
  std::mt19937_64 generator(1);
  for (int round = 0; round < 8; ++round) {
    Shape shape;
    for (int d = 0; d < 4; ++d)
      shape.push_back(std::uniform_int_distribution<int64_t>(1, round == 7 ? 20 : 5)(generator));
    const HostTensor x = HostTensor::Random(round % 2 ? DType::kFloat16 : DType::kFloat32, shape, round);
    for (uint32_t mask = 1; mask < 16; ++mask) {
      std::vector<int64_t> axes;
      Shape expected_shape;
      for (int d = 0; d < 4; ++d) {
        if (mask >> d & 1) axes.push_back(d);
        expected_shape.push_back(mask >> d & 1 ? 1 : shape[d]);
      }
      std::vector<double> sums(static_cast<size_t>(expected_shape.Elements()));
      for (int64_t i = 0; i < x.elements(); ++i) {
        int64_t rest = i, to = 0, stride = 1;
        for (int d = 3; d >= 0; --d) {
          if (!(mask >> d & 1)) {
            to += rest % shape[d] * stride;
            stride *= shape[d];
          }
          rest /= shape[d];
        }
        sums[static_cast<size_t>(to)] += x[i];
      }
      const HostTensor axes_input = HostTensor::Of<int64_t>(Shape{static_cast<int64_t>(axes.size())}, axes);
      const HostTensor y = RunOp("ReduceSum", {x, axes_input})[0];
      CHECK(y.shape() == expected_shape);
      // One rounding to float16 of sums below 2^7; float32 sums are more accurate.
      for (size_t i = 0; i < sums.size(); ++i) CHECK(std::fabs(y[static_cast<int64_t>(i)] - sums[i]) <= 0x1p-5);
    }
  }
}

TEST_CASE("reduce: running sums in place") {
  const HostTensor x = HostTensor::From(DType::kInt32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const HostTensor axis = HostTensor::Of<int64_t>({}, {1});
  const HostTensor y = RunOp("CumSum", {x, axis}, {.attributes = {{"exclusive", int64_t{1}}}, .alias = {{0, 0}}})[0];
  CHECK(y.values() == std::vector<double>{0, 1, 3, 0, 4, 9});
}

TEST_CASE("normalization: in place, and with a scale that varies along the row") {
  const HostTensor x = HostTensor::From(DType::kFloat32, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const HostTensor scale = HostTensor::From(DType::kFloat32, {2, 1}, {1, 10});
  const RunOptions options{.attributes = {{"axis", int64_t{1}}, {"epsilon", 0.0}}, .alias = {{0, 0}}};
  const HostTensor y = RunOp("LayerNormalization", {x, scale}, options)[0];
  const double unit = std::sqrt(1.25);
  const double expected[] = {-1.5 / unit, -0.5 / unit, 5 / unit, 15 / unit};
  for (int64_t i = 0; i < 8; ++i) CHECK(y[i] == doctest::Approx(expected[i % 4]));
}

}  // namespace
