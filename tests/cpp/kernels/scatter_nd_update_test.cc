#include <cstring>
#include <string>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;

constexpr const char* kType = "npu::NPUScatterNdUpdate";

std::string ErrorOf(const std::vector<HostTensor>& inputs) {
  try {
    RunOp(kType, inputs, {.alias = {{0, 0}}});
  } catch (const npu::Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("slices are written at their index tuples, out of place and in place, for every dtype and index type") {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kBool, DType::kInt64, DType::kInt32,
                      DType::kInt8, DType::kUInt8}) {
    for (DType index : {DType::kInt32, DType::kInt64}) {
      const HostTensor self = HostTensor::Random(dtype, {3, 4, 5}, 1, 0, 8);
      const HostTensor indices = HostTensor::From(index, {3, 2}, {2, 1, 0, 3, 2, 0});
      const HostTensor updates = HostTensor::Random(dtype, {3, 5}, 2, 0, 8);
      std::vector<double> expected = self.values();
      for (int t = 0; t < 3; ++t)
        for (int i = 0; i < 5; ++i)
          expected[static_cast<size_t>(indices[2 * t] * 20 + indices[2 * t + 1] * 5) + i] = updates[5 * t + i];
      const std::vector<double> before = self.values();
      CHECK(RunOp(kType, {self, indices, updates})[0].values() == expected);
      CHECK(self.values() == before);
      const HostTensor y = RunOp(kType, {self, indices, updates}, {.alias = {{0, 0}}})[0];
      CHECK(y.data<void>() == self.data<void>());
      CHECK(self.values() == expected);
    }
  }
}

TEST_CASE("an out-of-range index is refused before the first write") {
  const HostTensor self = HostTensor::Random(DType::kFloat32, {6, 4}, 1);
  const HostTensor updates = HostTensor::Random(DType::kFloat32, {3, 4}, 2);
  const std::vector<double> before = self.values();
  for (int64_t bad : {int64_t{6}, int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{1} << 32}) {
    CAPTURE(bad);
    const std::string error = ErrorOf({self, HostTensor::Of<int64_t>({3, 1}, {0, 1, bad}), updates});
    CHECK(error.find("[npu_scatter_nd_update] expected indices in [0, 6) for axis 0, got " + std::to_string(bad)) !=
          std::string::npos);
    CHECK(self.values() == before);
  }
  // The device stays usable.
  RunOp(kType, {self, HostTensor::Of<int64_t>({3, 1}, {0, 1, 5}), updates}, {.alias = {{0, 0}}});
  CHECK(self[23] == updates[11]);
}

TEST_CASE("indices that alias the overwritten tensor cannot redirect a write") {
  // Every slice is overwritten with values that are out of range as indices.
  HostTensor self = HostTensor::Of<int64_t>({4, 1}, {3, 2, 1, 0});
  const HostTensor wild = HostTensor::Of<int64_t>({4, 1}, {1LL << 40, 1LL << 41, 1LL << 42, 1LL << 43});
  RunOp(kType, {self, self, wild}, {.alias = {{0, 0}}});
  CHECK(self.values() == std::vector<double>{0x1p43, 0x1p42, 0x1p41, 0x1p40});
}

TEST_CASE("the last of equal tuples wins, for any number of threads") {
  const int64_t rows = 2000, width = 100;
  std::vector<int64_t> indices(rows);
  for (int64_t i = 0; i < rows; ++i) indices[i] = i % 7;
  const HostTensor self(DType::kFloat32, {7, width});
  const HostTensor updates = HostTensor::Random(DType::kFloat32, {rows, width}, 1);
  const HostTensor y = RunOp(kType, {self, HostTensor::Of<int64_t>({rows, 1}, indices), updates})[0];
  for (int64_t slice = 0; slice < 7; ++slice) {
    const int64_t last = (rows - 1 - slice) / 7 * 7 + slice;
    CHECK(std::memcmp(y.data<float>() + slice * width, updates.data<float>() + last * width, width * 4) == 0);
  }
}

TEST_CASE("large slices and many rows are split between threads without gaps") {
  for (const int64_t rows : {int64_t{3}, int64_t{3001}}) {
    const int64_t width = rows == 3 ? 100003 : 101;
    std::vector<int64_t> indices(rows);
    for (int64_t i = 0; i < rows; ++i) indices[i] = i + 1;
    const HostTensor self = HostTensor::Random(DType::kInt8, {rows + 2, width}, 1, -100, 100);
    const HostTensor updates = HostTensor::Random(DType::kInt8, {rows, width}, 2, -100, 100);
    const HostTensor y = RunOp(kType, {self, HostTensor::Of<int64_t>({rows, 1}, indices), updates})[0];
    CHECK(std::memcmp(y.data<char>(), self.data<char>(), width) == 0);
    CHECK(std::memcmp(y.data<char>() + width, updates.data<char>(), rows * width) == 0);
    CHECK(std::memcmp(y.data<char>() + (rows + 1) * width, self.data<char>() + (rows + 1) * width, width) == 0);
  }
}

TEST_CASE("mismatched shapes are refused") {
  const HostTensor self(DType::kFloat32, {4, 6});
  const HostTensor index = HostTensor::Of<int64_t>({1, 1}, {0});
  CHECK(ErrorOf({self, index, HostTensor(DType::kFloat32, {1, 5})}).find("expected updates of shape [1, 6]") !=
        std::string::npos);
  CHECK(ErrorOf({self, HostTensor::Of<int64_t>({1, 3}, {0, 0, 0}), self}).find("in [1, 2], the rank of self") !=
        std::string::npos);
  CHECK(ErrorOf({self, HostTensor(DType::kInt64, {3, 0}), self}).find("in [1, 2], the rank of self") !=
        std::string::npos);
  CHECK(ErrorOf({self, HostTensor(DType::kInt64, {}), self}).find("the rank of self") != std::string::npos);
  CHECK(ErrorOf({HostTensor(DType::kFloat32, {0, 6}), index, HostTensor(DType::kFloat32, {1, 6})})
            .find("expected indices in [0, 0) for axis 0, got 0") != std::string::npos);
}

}  // namespace
