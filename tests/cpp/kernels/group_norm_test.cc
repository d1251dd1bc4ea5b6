#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;

TEST_CASE("group norm with SiLU in place matches a double reference for any number of spatial elements") {
  const int64_t samples = 2, channels = 6, groups = 3;
  for (const Shape& shape :
       {Shape{samples, channels}, Shape{samples, channels, 1, 7}, Shape{samples, channels, 31, 29}}) {
    CAPTURE(shape.ToString());
    const HostTensor x = HostTensor::Random(DType::kFloat32, shape, 1, -3.0, 3.0);
    const HostTensor weight = HostTensor::Random(DType::kFloat32, {channels}, 2);
    const HostTensor bias = HostTensor::Random(DType::kFloat32, {channels}, 3);
    const std::vector<double> before = x.values();
    const std::vector<HostTensor> out = RunOp("npu::NPUGroupNormSilu", {x, weight, bias},
                                              {.attributes = {{"group", groups}}, .outputs = 3, .alias = {{0, 0}}});
    CHECK(out[0].data<void>() == x.data<void>());
    const int64_t spatial = shape.Elements() / (samples * channels), n = channels / groups * spatial;
    for (int64_t row = 0; row < samples * groups; ++row) {
      double mean = 0.0, variance = 0.0;
      for (int64_t i = 0; i < n; ++i) mean += before[row * n + i] / n;
      for (int64_t i = 0; i < n; ++i) variance += (before[row * n + i] - mean) * (before[row * n + i] - mean) / n;
      const double rstd = 1.0 / std::sqrt(variance + 1e-5);
      CHECK(out[1][row] == doctest::Approx(mean).epsilon(1e-5));
      CHECK(out[2][row] == doctest::Approx(rstd).epsilon(1e-5));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t channel = (row * n + i) / spatial % channels;
        const double g = (before[row * n + i] - mean) * rstd * weight[channel] + bias[channel];
        const double expected = g / (1.0 + std::exp(-g));
        // The mean is rounded to float32, and rstd magnifies the error.
        if (!(std::fabs(out[0][row * n + i] - expected) <= 5e-6 + rstd * 0x1p-22))
          FAIL_CHECK(out[0][row * n + i], " != ", expected);
      }
    }
  }
}

TEST_CASE("group norm of an empty batch and of empty channels") {
  for (const Shape& shape : {Shape{0, 4, 3}, Shape{2, 4, 0}}) {
    const std::vector<HostTensor> out = RunOp("npu::NPUGroupNormSilu", {HostTensor(DType::kFloat16, shape), {}, {}},
                                              {.attributes = {{"group", int64_t{2}}}, .outputs = 3});
    CHECK(out[0].shape() == shape);
    CHECK(out[1].shape() == Shape{shape[0], 2});
    for (int64_t i = 0; i < out[1].elements(); ++i) CHECK(std::isnan(out[1][i]));
  }
}

}  // namespace
