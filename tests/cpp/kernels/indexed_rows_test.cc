// The kernels behind torch's operators on indexed rows: hostile indices, shapes and attributes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

std::string RefusalOf(const std::string& type, const std::vector<HostTensor>& inputs, const RunOptions& options) {
  try {
    RunOp(type, inputs, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool Refused(const std::string& type, const std::vector<HostTensor>& inputs, const RunOptions& options,
             const std::string& message) {
  const std::string error = RefusalOf(type, inputs, options);
  CAPTURE(error);
  const bool found = error.find(message) != std::string::npos;
  CHECK(found);
  return found;
}

HostTensor Int64s(const std::vector<int64_t>& values) {
  return HostTensor::Of<int64_t>({static_cast<int64_t>(values.size())}, values);
}
HostTensor Index(DType dtype, const std::vector<double>& values) {
  return HostTensor::From(dtype, {static_cast<int64_t>(values.size())}, values);
}
const HostTensor kHalfFactor = HostTensor::Of<double>({}, {0.5});

TEST_CASE("rows by index: add, copy and fill along any axis, out of place and in place") {
  for (const DType index : {DType::kInt32, DType::kInt64}) {
    const HostTensor self = HostTensor::From(DType::kFloat32, {2, 3}, {1, 2, 3, 4, 5, 6});
    const HostTensor source = HostTensor::From(DType::kFloat32, {2, 2}, {10, 20, 30, 40});
    const HostTensor twice = Index(index, {2, 2});
    const RunOptions columns = {.attributes = {{"axis", int64_t{-1}}}};
    CHECK(RunOp("npu.aten::IndexAdd", {self, twice, source, kHalfFactor}, columns)[0].values() ==
          std::vector<double>{1, 2, 18, 4, 5, 41});
    CHECK(RunOp("npu.aten::IndexCopy", {self, twice, source}, columns)[0].values() ==
          std::vector<double>{1, 2, 20, 4, 5, 40});
    const HostTensor nine = HostTensor::From(DType::kFloat32, {}, {9});
    CHECK(RunOp("npu.aten::IndexFill", {self, Index(index, {-3, 1}), nine}, columns)[0].values() ==
          std::vector<double>{9, 9, 3, 9, 9, 6});
    CHECK(self.values() == std::vector<double>{1, 2, 3, 4, 5, 6});
    RunOp("npu.aten::IndexAdd",
          {self, Index(index, {1}), HostTensor::From(DType::kFloat32, {1, 3}, {2, 4, 6}), kHalfFactor},
          {.attributes = {{"axis", int64_t{0}}}, .alias = {{0, 0}}});
    CHECK(self.values() == std::vector<double>{1, 2, 3, 5, 7, 9});
  }
}

TEST_CASE("rows by index: integers wrap") {
  const HostTensor self = HostTensor::Of<int8_t>({2}, {100, -128});
  const HostTensor y =
      RunOp("npu.aten::IndexAdd",
            {self, Int64s({0, 1}), HostTensor::Of<int8_t>({2}, {50, -1}), HostTensor::Of<int64_t>({}, {1})},
            {.attributes = {{"axis", int64_t{0}}}})[0];
  CHECK(y.values() == std::vector<double>{-106, 127});
}

TEST_CASE("rows by index: an index out of range is refused before the first write") {
  const RunOptions in_place = {.attributes = {{"axis", int64_t{0}}}, .alias = {{0, 0}}};
  const HostTensor self = HostTensor::Random(DType::kFloat32, {6, 4}, 1);
  const HostTensor source = HostTensor::Random(DType::kFloat32, {2, 4}, 2);
  const HostTensor value = HostTensor::From(DType::kFloat32, {}, {1});
  const std::vector<double> before = self.values();
  for (const int64_t bad : {int64_t{6}, int64_t{-7}, INT64_MAX, INT64_MIN, int64_t{1} << 32}) {
    const HostTensor index = Int64s({0, bad});
    const std::string got = ", 6), got " + std::to_string(bad) + " at 1";
    Refused("npu.aten::IndexAdd", {self, index, source, kHalfFactor}, in_place,
            "[index_add] expected an index in [0" + got);
    Refused("npu.aten::IndexCopy", {self, index, source}, in_place, "[index_copy] expected an index in [0" + got);
    Refused("npu.aten::IndexFill", {self, index, value}, in_place, "[index_fill] expected an index in [-6" + got);
    CHECK(self.values() == before);
  }
  Refused("npu.aten::IndexAdd", {self, Int64s({0, -1}), source, kHalfFactor}, in_place, "got -1 at 1");
  Refused("npu.aten::IndexCopy", {self, Int64s({0, -1}), source}, in_place, "got -1 at 1");
}

TEST_CASE("rows by index: bad shapes, types and attributes are refused") {
  const RunOptions rows = {.attributes = {{"axis", int64_t{0}}}};
  const HostTensor self = HostTensor::Random(DType::kFloat32, {6, 4}, 1), index = Int64s({0, 1});
  const auto source = [](const Shape& shape) { return HostTensor::Random(DType::kFloat32, shape, 2); };
  for (const Shape& wrong : {Shape{1, 4}, Shape{2, 3}, Shape{2}, Shape{3, 4}, Shape{0, 4}}) {
    Refused("npu.aten::IndexAdd", {self, index, source(wrong), kHalfFactor}, rows, "expected source float32");
    Refused("npu.aten::IndexCopy", {self, index, source(wrong)}, rows, "expected source float32");
  }
  Refused("npu.aten::IndexAdd", {self, index, HostTensor::Random(DType::kFloat64, {2, 4}, 2), kHalfFactor}, rows,
          "expected source float32");
  Refused("npu.aten::IndexAdd", {self, index, source({2, 4}), HostTensor::Of<int64_t>({}, {1})}, rows,
          "expected alpha to be one float64");
  Refused("npu.aten::IndexCopy", {self, HostTensor::Of<int64_t>({1, 2}, {0, 1}), source({2, 4})}, rows,
          "expected a list of indices");
  Refused("npu.aten::IndexCopy", {self, HostTensor::Of<float>({2}, {0, 1}), source({2, 4})}, rows,
          "expected indices of int32 or int64");
  Refused("npu.aten::IndexFill", {self, index, source({2})}, rows, "expected one value of float32");
  for (const int64_t axis : {2, -3})
    Refused("npu.aten::IndexFill", {self, index, source({})}, {.attributes = {{"axis", axis}}}, "axis");
}

TEST_CASE("searchsorted: left and right of ties, with a sorter, NaN after all values") {
  const HostTensor sorted = HostTensor::From(DType::kFloat32, {2, 3}, {1, 3, 3, 0, 2, 5});
  const HostTensor values = HostTensor::From(DType::kFloat32, {2, 2}, {3, NAN, -1, 5});
  const std::string type = "npu.aten::SearchSorted";
  CHECK(RunOp(type, {sorted, values})[0].values() == std::vector<double>{1, 3, 0, 2});
  CHECK(RunOp(type, {sorted, values}, {.attributes = {{"right", int64_t{1}}}})[0].values() ==
        std::vector<double>{3, 3, 0, 3});
  const HostTensor shuffled = HostTensor::From(DType::kFloat32, {2, 3}, {3, 1, 3, 5, 0, 2});
  const HostTensor order = HostTensor::Of<int64_t>({2, 3}, {1, 0, 2, 1, 2, 0});
  CHECK(RunOp(type, {shuffled, values, order})[0].values() == std::vector<double>{1, 3, 0, 2});
  for (const int64_t bad : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN})
    Refused(type, {shuffled, values, HostTensor::Of<int64_t>({2, 3}, {1, 0, 2, 1, bad, 0})}, {},
            "[searchsorted] expected a sorter's index in [0, 3), got " + std::to_string(bad));
  Refused(type, {shuffled, values, HostTensor::Of<int64_t>({2, 2}, {1, 0, 2, 1})}, {}, "expected a sorter of int64");
  Refused(type, {sorted, HostTensor::From(DType::kFloat32, {3, 1}, {1, 2, 3})}, {}, "expected sorted [R, L]");
  Refused(type, {sorted, HostTensor::Random(DType::kFloat64, {2, 2}, 1)}, {}, "of one dtype");
}

TEST_CASE("unique: runs of equal rows") {
  const HostTensor rows = HostTensor::From(DType::kInt32, {4, 2}, {2, 1, 1, 9, 2, 1, 1, 9});
  const std::vector<HostTensor> sorted = RunOp("npu.aten::UniqueRuns", {rows}, {.outputs = 2});
  CHECK(sorted[0].values() == std::vector<double>{1, 3, 0, 2});
  CHECK(sorted[1].values() == std::vector<double>{1, 0, 1, 0});
  const std::vector<HostTensor> as_they_are =
      RunOp("npu.aten::UniqueRuns", {rows}, {.attributes = {{"sorted", int64_t{0}}}, .outputs = 2});
  CHECK(as_they_are[1].values() == std::vector<double>{1, 1, 1, 1});
  // Rows of one element: ties keep their order, NaN is last and compares unequal to itself.
  const HostTensor numbers = HostTensor::From(DType::kFloat16, {6, 1}, {NAN, 2, -1, 2, NAN, -0.0});
  const std::vector<HostTensor> runs = RunOp("npu.aten::UniqueRuns", {numbers}, {.outputs = 2});
  CHECK(runs[0].values() == std::vector<double>{2, 5, 1, 3, 0, 4});
  CHECK(runs[1].values() == std::vector<double>{1, 1, 1, 0, 1, 1});
  Refused("npu.aten::UniqueRuns", {HostTensor::Random(DType::kInt32, {4}, 1)}, {.outputs = 2}, "expected a matrix");
}

TEST_CASE("nonzero: a wrong count is refused") {
  const std::string type = "npu.aten::TruePositions";
  const HostTensor x = HostTensor::From(DType::kBool, {2, 2, 3}, {0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0});
  const auto count = [](int64_t n) { return HostTensor::Of<int64_t>({}, {n}); };
  CHECK(RunOp("npu.aten::CountTrue", {x})[0].values() == std::vector<double>{3});
  CHECK(RunOp(type, {x, count(3)})[0].values() == std::vector<double>{0, 0, 1, 0, 1, 2, 1, 0, 0});
  Refused(type, {x, count(2)}, {}, "[nonzero] expected 2 true elements, got 3");
  Refused(type, {x, count(4)}, {}, "[nonzero] expected 4 true elements, got 3");
  for (const int64_t bad : {int64_t{13}, int64_t{-1}, INT64_MAX, INT64_MIN})
    Refused(type, {x, count(bad)}, {}, "[nonzero] expected a count in [0, 12], got " + std::to_string(bad));
}

TEST_CASE("nonzero: positions in the parts of a mask that threads share") {
  constexpr int64_t kRows = 3, kColumns = 30011;
  std::vector<double> mask, expected;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    mask.push_back(i % 3 == 0 || i % 7 == 0 ? 1 : 0);
    if (mask.back() == 0) continue;
    expected.push_back(static_cast<double>(i / kColumns));
    expected.push_back(static_cast<double>(i % kColumns));
  }
  const HostTensor x = HostTensor::From(DType::kBool, {kRows, kColumns}, mask);
  const auto count = static_cast<int64_t>(expected.size() / 2);
  CHECK(RunOp("npu.aten::CountTrue", {x})[0].values() == std::vector<double>{static_cast<double>(count)});
  CHECK(RunOp("npu.aten::TruePositions", {x, HostTensor::Of<int64_t>({}, {count})})[0].values() == expected);
}

TEST_CASE("embedding bag: bad offsets and indices are refused") {
  const std::string type = "npu.aten::EmbeddingBag";
  const HostTensor weight = HostTensor::From(DType::kFloat32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const auto run = [&](std::vector<int64_t> indices, std::vector<int64_t> offsets, int64_t closed = 0) {
    return RunOp(type, {weight, Int64s(indices), Int64s(offsets)},
                 {.attributes = {{"include_last_offset", closed}}, .outputs = 4});
  };
  const std::vector<HostTensor> open = run({0, 2, 1}, {0, 2});
  CHECK(open[0].values() == std::vector<double>{6, 8, 3, 4});
  CHECK(open[1].values() == std::vector<double>{0, 0, 1});
  CHECK(open[2].values() == std::vector<double>{2, 1});
  CHECK(open[3].shape() == Shape{0, 2});
  CHECK(run({0, 2, 1}, {0, 2}, 1)[1].values() == std::vector<double>{0, 0, -1});  // the last index belongs to no bag
  const auto refused = [&](std::vector<int64_t> indices, std::vector<int64_t> offsets, const std::string& message) {
    Refused(type, {weight, Int64s(indices), Int64s(offsets)}, {.outputs = 4}, "[embedding_bag] " + message);
  };
  for (const int64_t bad : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN})
    refused({0, bad}, {0}, "expected an index in [0, 3), got " + std::to_string(bad) + " at 1");
  for (const int64_t bad : {int64_t{4}, int64_t{-1}, INT64_MAX, INT64_MIN})
    refused({0, 1, 2}, {0, bad}, "expected offsets in order and up to 3");
  refused({0, 1, 2}, {0, 3, 1}, "expected offsets in order");
  refused({0, 1, 2}, {1}, "offsets[0] has to be 0");
  refused({0}, {}, "expected offsets for 1 indices");
  Refused(type, {weight, Int64s({}), Int64s({})}, {.attributes = {{"include_last_offset", int64_t{1}}}, .outputs = 4},
          "expected at least one offset");
  for (const int64_t mode : {3, -1})
    Refused(type, {weight, Int64s({0}), Int64s({0})}, {.attributes = {{"mode", mode}}, .outputs = 4},
            "expected mode 0, 1 or 2");
  const HostTensor factors = HostTensor::Random(DType::kFloat32, {2}, 1);
  Refused(type, {weight, Int64s({0}), Int64s({0}), factors}, {.outputs = 4}, "expected per_sample_weights");
}

}  // namespace
}  // namespace npu::test
