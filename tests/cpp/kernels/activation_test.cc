#include <cmath>

#include "doctest/doctest.h"
#include "ep/kernels/activation/activations.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;

double Silu(double x) { return x / (1.0 + std::exp(-x)); }
double GeluErf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double GeluTanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double FastGelu(double x) { return x / (1.0 + std::exp(-1.702 * x)); }
double Mish(double x) { return x * std::tanh(std::log1p(std::exp(x))); }

// Half an ulp of the dtype and a few of float32; the absolute part covers the cancellation in 1 + erf(x) and
// 1 + tanh(x) for negative x.
void CheckClose(double got, double expected, DType dtype) {
  const double half_ulp = dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24;
  if (!(std::fabs(got - expected) <= std::fabs(expected) * (half_ulp + 0x1p-20) + 5e-7))
    FAIL_CHECK(got, " != ", expected);
}

struct Case {
  const char* type;
  double (*expected)(double);
  std::map<std::string, npu::Attributes::Value> attributes;
};

TEST_CASE("pointwise activations match a double reference over their whole range, also in place") {
  const Case cases[] = {{"npu::NPUSilu", Silu, {}},
                        {"npu::NPUFastGelu", FastGelu, {}},
                        {"npu::NPUMish", Mish, {}},
                        {"npu::NPUGeluV2", GeluErf, {{"approximate", std::string("none")}}},
                        {"npu::NPUGeluV2", GeluTanh, {{"approximate", std::string("tanh")}}}};
  for (const Case& c : cases) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      CAPTURE(c.type);
      CAPTURE(NameOf(dtype));
      const HostTensor x = HostTensor::Random(dtype, {3, 20011}, 1, -12.0, 12.0);
      const std::vector<double> before = x.values();
      const HostTensor y = RunOp(c.type, {x}, {.attributes = c.attributes, .alias = {{0, 0}}})[0];
      CHECK(y.data<void>() == x.data<void>());
      for (int64_t i = 0; i < y.elements(); ++i) CheckClose(y[i], c.expected(before[i]), dtype);
    }
  }
}

TEST_CASE("the SiLU of 16-bit results is within 5e-6") {
  double worst = 0;
  for (float x = -87.6f; x < 100.0f; x += 0x1p-9f)
    if (x != 0.0f) worst = std::fmax(worst, std::fabs(npu::RoughSilu(x) / Silu(x) - 1.0));
  CHECK(worst <= 5e-6);
  CHECK(npu::RoughSilu(0.0f) == 0.0f);
  CHECK(npu::RoughSilu(-1e30f) == 0.0f);
  CHECK(npu::RoughSilu(INFINITY) == INFINITY);
  CHECK(std::isnan(npu::RoughSilu(NAN)));
}

TEST_CASE("saturated activations are exact and NaN stays NaN") {
  const HostTensor x = HostTensor::Of<float>({4}, {-1e30f, 1e30f, NAN, -0.0f});
  for (const char* type : {"npu::NPUSilu", "npu::NPUFastGelu", "npu::NPUMish", "npu::NPUGeluV2"}) {
    CAPTURE(type);
    const HostTensor y = RunOp(type, {x})[0];
    CHECK(y[0] == 0.0);
    CHECK(y[1] == 1e30f);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 0.0);
  }
}

TEST_CASE("swiglu and geglu combine the halves of any axis") {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const Shape shape{3, 6, 1500};
    const HostTensor x = HostTensor::Random(dtype, shape, 2, -4.0, 4.0);
    for (int axis = 0; axis < 3; ++axis) {
      if (shape[axis] % 2 != 0) continue;
      int64_t inner = 1;
      for (int i = axis + 1; i < 3; ++i) inner *= shape[i];
      const int64_t half = shape[axis] / 2 * inner, outer = shape.Elements() / (2 * half);
      const HostTensor y = RunOp("npu::NPUSwiGlu", {x}, {.attributes = {{"dim", int64_t{axis - 3}}}})[0];
      const std::vector<HostTensor> g = RunOp(
          "npu::NPUGeGlu", {x}, {.attributes = {{"dim", int64_t{axis}}, {"approximate", int64_t{0}}}, .outputs = 2});
      CHECK(y.shape()[axis] == shape[axis] / 2);
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < half; ++i) {
          const double a = x[2 * o * half + i], b = x[(2 * o + 1) * half + i];
          CheckClose(y[o * half + i], Silu(a) * b, dtype);
          CheckClose(g[0][o * half + i], a * GeluErf(b), dtype);
          CheckClose(g[1][o * half + i], GeluErf(b), dtype);
        }
      }
    }
  }
}

TEST_CASE("geglu with an unused second output, and an axis of odd size") {
  const HostTensor x = HostTensor::Random(DType::kFloat16, {2, 8}, 3);
  const std::vector<HostTensor> both = RunOp("npu::NPUGeGlu", {x}, {.outputs = 2});
  CHECK(RunOp("npu::NPUGeGlu", {x}, {.requested = {true, false}})[0].values() == both[0].values());
  CHECK(RunOp("npu::NPUGeGlu", {x}, {.requested = {false, true}})[1].values() == both[1].values());
  CHECK_THROWS_WITH_AS(RunOp("npu::NPUSwiGlu", {HostTensor(DType::kFloat32, {2, 7})}),
                       "[npu_swiglu] expected an even size of axis -1, got 7", npu::Error);
}

}  // namespace
