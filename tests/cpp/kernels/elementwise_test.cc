// Cases that the Python tests cannot reach: in-place calls, errors inside launches, bools other than 0 and 1.
// Values over dtypes and shapes: tests/kernels/test_elementwise.py.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <string>

#include "tests/cpp/support/test_context.h"

namespace {

using namespace npu;
using namespace npu::test;

std::string ErrorOf(const std::string& type, std::vector<HostTensor> inputs, const RunOptions& options = {}) {
  try {
    RunOp(type, std::move(inputs), options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("elementwise: broadcasting over every pairing of ranks") {
  const HostTensor a = HostTensor::From(DType::kFloat32, {2, 1, 3}, {1, 2, 3, 4, 5, 6});
  const HostTensor b = HostTensor::From(DType::kFloat32, {2, 1}, {10, 20});
  const HostTensor y = RunOp("Add", {a, b})[0];
  CHECK(y.shape() == Shape{2, 2, 3});
  CHECK(y.values() == std::vector<double>{11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26});
  const HostTensor scalar = HostTensor::From(DType::kFloat32, {}, {0.5});
  CHECK(RunOp("Mul", {scalar, b})[0].values() == std::vector<double>{5, 10});
  CHECK(RunOp("Mul", {scalar, scalar})[0].shape() == Shape{});
  CHECK(RunOp("Sub", {HostTensor(DType::kFloat32, {0, 3}), HostTensor(DType::kFloat32, {1, 3})})[0].shape() ==
        Shape{0, 3});
  CHECK(ErrorOf("Add", {a, HostTensor(DType::kFloat32, {4})}).find("[Add] expected broadcastable shapes") == 0);
}

TEST_CASE("elementwise: in place over either operand") {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt64}) {
    CAPTURE(NameOf(dtype));
    for (size_t input : {size_t{0}, size_t{1}}) {
      const HostTensor a = HostTensor::From(dtype, {2000}, std::vector<double>(2000, 6));
      const HostTensor b = HostTensor::From(dtype, {2000}, std::vector<double>(2000, 2));
      const HostTensor y = RunOp("Div", {a, b}, {.attributes = {}, .alias = {{0, input}}})[0];
      CHECK(y.data<void>() == (input == 0 ? a : b).data<void>());
      CHECK(y.values() == std::vector<double>(2000, 3));
    }
    const HostTensor x = HostTensor::From(dtype, {1000}, std::vector<double>(1000, -1));
    CHECK(RunOp("Abs", {x}, {.attributes = {}, .alias = {{0, 0}}})[0].values() == std::vector<double>(1000, 1));
  }
}

// Rows that are longer than a block, along which any of the inputs stands still: one loop or block for each way.
TEST_CASE("elementwise: inputs that stand still along a row") {
  constexpr int64_t kRows = 3, kColumns = 1000;
  const Shape shape{kRows, kColumns}, column{kRows, 1}, row{kColumns};
  const auto values = [](DType dtype, const Shape& of, int64_t first) {
    HostTensor t(dtype, of);
    // So small that bfloat16 holds every product.
    for (int64_t i = 0; i < t.elements(); ++i) t.Set(i, static_cast<double>((first + i * 7) % 13 + 1));
    return t;
  };
  const auto at = [&](const HostTensor& t, int64_t r, int64_t c) {
    return t[(t.shape().rank() == 2 ? r * t.shape()[1] : 0) + (t.shape().back() == 1 ? 0 : c)];
  };
  const Shape shapes[] = {shape, column, row};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kInt8}) {
    CAPTURE(NameOf(dtype));
    for (const Shape& a_shape : shapes) {
      for (const Shape& b_shape : shapes) {
        const HostTensor a = values(dtype, a_shape, 3), b = values(dtype, b_shape, 11);
        const HostTensor sum = RunOp("Sub", {a, b})[0], less = RunOp("Less", {a, b})[0];
        int wrong = 0;
        for (int64_t r = 0; r < sum.shape()[0] && sum.shape().rank() == 2; ++r)
          for (int64_t c = 0; c < sum.shape()[1]; ++c) {
            wrong += at(sum, r, c) != at(a, r, c) - at(b, r, c);
            wrong += at(less, r, c) != (at(a, r, c) < at(b, r, c) ? 1.0 : 0.0);
          }
        CHECK(wrong == 0);
        if (dtype == DType::kInt64 || dtype == DType::kInt8) continue;
        for (const Shape& w_shape : shapes) {
          const HostTensor w = values(dtype, w_shape, 5);
          // a * 2 (b - w) * scale
          const HostTensor y = RunOp("npu.aten::MseLossGrad", {a, b, w}, {.attributes = {{"scale", 0.5}}})[0];
          for (int64_t r = 0; r < y.shape()[0] && y.shape().rank() == 2; ++r)
            for (int64_t c = 0; c < y.shape()[1]; ++c)
              wrong += at(y, r, c) != at(a, r, c) * (at(b, r, c) - at(w, r, c));
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("elementwise: truth values in place") {
  HostTensor a(DType::kBool, {600}), b(DType::kBool, {600});
  for (int64_t i = 0; i < 600; ++i) {
    a.data<uint8_t>()[i] = static_cast<uint8_t>(i % 3);  // 2 is true
    b.data<uint8_t>()[i] = static_cast<uint8_t>(i % 2);
  }
  const HostTensor both = RunOp("And", {a, b})[0];
  const HostTensor y = RunOp("And", {a, b}, {.attributes = {}, .alias = {{0, 1}}})[0];
  CHECK(y.data<void>() == b.data<void>());
  CHECK(std::memcmp(y.data<void>(), both.data<void>(), 600) == 0);
  CHECK(RunOp("Not", {y}, {.attributes = {}, .alias = {{0, 0}}})[0].values()[5] == 0);
}

TEST_CASE("elementwise: a divisor of 0 is found wherever it stands") {
  for (DType dtype : {DType::kInt32, DType::kUInt8, DType::kInt64}) {
    CAPTURE(NameOf(dtype));
    HostTensor divisors = HostTensor::From(dtype, {700}, std::vector<double>(700, 2));
    const HostTensor scalar = HostTensor::From(dtype, {1}, {6}), zero = HostTensor::From(dtype, {1}, {0});
    for (const char* op : {"Div", "Mod"}) {
      CHECK(ErrorOf(op, {divisors, zero}).find("expected a non-zero divisor") != std::string::npos);
      divisors.Set(699, 0);
      CHECK(ErrorOf(op, {scalar, divisors}).find("expected a non-zero divisor") != std::string::npos);
      divisors.Set(699, 2);
      CHECK(ErrorOf(op, {scalar, divisors}) == "");
    }
    CHECK(ErrorOf("npu.aten::FloorDivide", {divisors, zero}).find("ZeroDivisionError") != std::string::npos);
  }
}

TEST_CASE("elementwise: integer division by zero is an error, overflow is defined") {
  const auto i32 = [](std::vector<double> v) {
    return HostTensor::From(DType::kInt32, Shape{static_cast<int64_t>(v.size())}, v);
  };
  constexpr double kMin = std::numeric_limits<int32_t>::min();
  CHECK(RunOp("Div", {i32({kMin, 7, -7}), i32({-1, -2, 2})})[0].values() == std::vector<double>{kMin, -3, -3});
  CHECK(RunOp("Mod", {i32({kMin, 7, -7}), i32({-1, -2, 2})})[0].values() == std::vector<double>{0, -1, 1});
  CHECK(RunOp("Mod", {i32({kMin, 7, -7}), i32({-1, -2, 2})}, {.attributes = {{"fmod", int64_t{1}}}})[0].values() ==
        std::vector<double>{0, 1, -1});
  for (const char* op : {"Div", "Mod"}) {
    const std::string error = ErrorOf(op, {i32({1, 2}), i32({1, 0})});
    CHECK(error.find("integer division by zero") != std::string::npos);
  }
  CHECK(RunOp("Div", {i32({6}), i32({3})})[0].values() == std::vector<double>{2});  // the device stays usable
  CHECK(RunOp("Neg", {i32({kMin})})[0].values() == std::vector<double>{kMin});
  CHECK(RunOp("Abs", {i32({kMin})})[0].values() == std::vector<double>{kMin});
}

TEST_CASE("elementwise: integers wrap") {
  const auto u16 = [](double v) { return HostTensor::From(DType::kUInt16, {1}, {v}); };
  CHECK(RunOp("Mul", {u16(65535), u16(65535)})[0].values() == std::vector<double>{1});
  const auto i8 = [](double v) { return HostTensor::From(DType::kInt8, {1}, {v}); };
  CHECK(RunOp("Add", {i8(127), i8(1)})[0].values() == std::vector<double>{-128});
  const auto i64 = [](int64_t v) { return HostTensor::Of<int64_t>({1}, {v}); };
  CHECK(RunOp("Pow", {i64(3), i64(40)})[0].data<int64_t>()[0] == 12157665459056928801u - uint64_t{0});
  CHECK(RunOp("Pow", {i64(-1), i64(-3)})[0].values() == std::vector<double>{-1});
  CHECK(RunOp("Pow", {i64(2), i64(-3)})[0].values() == std::vector<double>{0});
  CHECK(RunOp("Pow", {i64(0), i64(-1)})[0].values() == std::vector<double>{0});  // as in torch
}

TEST_CASE("elementwise: a bool may hold any non-zero byte") {
  HostTensor odd(DType::kBool, {3});
  odd.data<uint8_t>()[0] = 2;
  odd.data<uint8_t>()[1] = 255;
  odd.data<uint8_t>()[2] = 0;
  HostTensor ones(DType::kBool, {3});
  std::fill_n(ones.data<uint8_t>(), 3, uint8_t{1});
  const auto bytes = [](const HostTensor& t) {
    return std::vector<int>(t.data<uint8_t>(), t.data<uint8_t>() + t.elements());
  };
  CHECK(bytes(RunOp("Equal", {odd, ones})[0]) == std::vector<int>{1, 1, 0});
  CHECK(bytes(RunOp("And", {odd, ones})[0]) == std::vector<int>{1, 1, 0});
  CHECK(bytes(RunOp("Xor", {odd, ones})[0]) == std::vector<int>{0, 0, 1});
  CHECK(bytes(RunOp("Not", {odd})[0]) == std::vector<int>{0, 0, 1});
  CHECK(RunOp("Cast", {odd}, {.attributes = {{"to", int64_t{1}}}})[0].values() == std::vector<double>{1, 1, 0});
  const HostTensor x = HostTensor::From(DType::kInt8, {1}, {5}), y = HostTensor::From(DType::kInt8, {1}, {6});
  CHECK(RunOp("Where", {odd, x, y})[0].values() == std::vector<double>{5, 5, 6});
}

TEST_CASE("elementwise: float to integer is defined for every value") {
  const double inf = std::numeric_limits<double>::infinity();
  const HostTensor x =
      HostTensor::From(DType::kFloat32, {6}, {2.9, -2.9, std::numeric_limits<double>::quiet_NaN(), inf, -inf, 3e9});
  const auto cast = [&](DType to) { return RunOp("Cast", {x}, {.attributes = {{"to", static_cast<int64_t>(to)}}})[0]; };
  constexpr double kMin = std::numeric_limits<int32_t>::min();
  CHECK(cast(DType::kInt32).values() == std::vector<double>{2, -2, kMin, kMin, kMin, kMin});
  CHECK(cast(DType::kInt8).values() == std::vector<double>{2, -2, 0, 0, 0, 0});
  CHECK(cast(DType::kUInt8).values() == std::vector<double>{2, 254, 0, 0, 0, 0});
  CHECK(cast(DType::kInt64)[5] == 3e9);
  CHECK(cast(DType::kUInt32)[5] == 3e9);
  CHECK(cast(DType::kBool).values() == std::vector<double>{1, 1, 1, 1, 1, 1});
}

TEST_CASE("elementwise: mixed types and mismatched shapes are refused before the launch") {
  const HostTensor f(DType::kFloat32, {2}), i(DType::kInt32, {2}), b(DType::kBool, {2});
  CHECK(ErrorOf("Add", {f, i}).find("[Add] expected inputs of one type, got float32 and int32") == 0);
  CHECK(ErrorOf("Max", {f, i}).find("[Max] expected inputs of one type") == 0);
  CHECK(ErrorOf("Where", {b, f, i}).find("[Where] expected X and Y of one type") == 0);
  CHECK(ErrorOf("Clip", {f, f}).find("[Clip] expected min to be a scalar, got shape [2]") == 0);
  CHECK(ErrorOf("Add", {HostTensor(DType::kString, Shape{0}), HostTensor(DType::kString, Shape{0})}).find("[Add]") ==
        0);
}

}  // namespace
