// Indices, lengths and counts that change after a kernel has checked them: an output shares their memory, or another
// thread writes to them. The call may be refused, and its results may be any; but it accesses nothing out of bounds,
// which AddressSanitizer sees, and without it an access as far away as these wrong numbers lead to.
#include "ep/kernels/checked_numbers.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/sanitizers.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr int64_t kFar = int64_t{1} << 40;

HostTensor Int64s(const std::vector<int64_t>& values) {
  return HostTensor::Of<int64_t>({static_cast<int64_t>(values.size())}, values);
}
HostTensor Int32s(const Shape& shape, const std::vector<int32_t>& values) {
  return HostTensor::Of<int32_t>(shape, values);
}
HostTensor Floats(const Shape& shape) { return HostTensor::Random(DType::kFloat32, shape, 1, -3, 0); }
Attributes::Value Int(int64_t value) { return value; }

TEST_CASE("a number that has changed since the first check is refused where it is used") {
  std::vector<int32_t> numbers{0, 2};
  const CheckedNumbers<int32_t> rows("op", "rows", numbers.data(), 0, 3);
  rows.CheckFirst(2);
  CHECK(rows[1] == 2);
  for (const int32_t wrong : {3, -1, INT32_MAX, INT32_MIN}) {
    numbers[1] = wrong;
    const std::string message = "[op] expected rows in [0, 3), got " + std::to_string(wrong) + " at 1";
    CHECK_THROWS_WITH_AS(rows[1], message.c_str(), Error);
    CHECK_THROWS_WITH_AS(rows.CheckFirst(2), message.c_str(), Error);
  }
}

TEST_CASE("rows are not copied to where an index leads that the call itself has overwritten") {
  // The indices are the tensor that the rows are copied to: the first copy overwrites the second index.
  const HostTensor self = Int64s({1, 0, 2, 3}), wild = Int64s({kFar, kFar, kFar, kFar});
  const RunOptions in_place = {.attributes = {{"axis", Int(0)}}, .alias = {{0, 0}}};
  CHECK_THROWS_WITH_AS(RunOp("npu.aten::IndexCopy", {self, self, wild}, in_place),
                       doctest::Contains("[index_copy] expected an index in [0, 4), got 1099511627776"), Error);
  const HostTensor filled = Int64s({1, 0, 2, 3}), value = HostTensor::Of<int64_t>({}, {kFar});
  CHECK_THROWS_AS(RunOp("npu.aten::IndexFill", {filled, filled, value}, in_place), Error);
  const HostTensor added = Int64s({1, 0, 2, 3}), one = HostTensor::Of<int64_t>({}, {1});
  CHECK_THROWS_AS(RunOp("npu.aten::IndexAdd", {added, added, wild, one}, in_place), Error);
}

TEST_CASE("rows are not gathered from where an index leads that the call itself has overwritten") {
  const HostTensor memory(DType::kInt64, {4, 2}), index = memory.As(DType::kInt64, {4});
  std::iota(index.data<int64_t>(), index.data<int64_t>() + 4, 0);
  const HostTensor table = HostTensor::Of<int64_t>({4, 2}, std::vector<int64_t>(8, kFar));
  CHECK_THROWS_WITH_AS(RunOp("npu::NPUGatherSparseIndex", {table, index}, {.memory = {{0, memory}}}),
                       doctest::Contains("[npu_gather_sparse_index] expected index in [0, 4), got 1099511627776"),
                       Error);
}

TEST_CASE("tokens are routed by the counts that were checked, when a result shares their memory") {
  // The numbers of the tokens would overwrite the counts of the ranks and experts while these are used.
  const HostTensor memory(DType::kInt32, {6}), counts = memory.As(DType::kInt32, {2, 2});
  for (int64_t i = 0; i < 4; ++i) counts.data<int32_t>()[i] = i % 3 == 0 ? 1 : 2;
  const RunOptions options = {
      .attributes = {{"expert_token_num_type", Int(1)}, {"idx_type", Int(0)}}, .outputs = 4, .memory = {{2, memory}}};
  const std::vector<HostTensor> results = RunOp("npu::NPUMoeReRouting", {Floats({6, 2}), counts, Floats({6})}, options);
  CHECK(results[2].values() == std::vector<double>{0, 3, 4, 1, 2, 5});
  CHECK(results[3].values() == std::vector<double>{3, 3});
}

// A call, one of whose numbers another thread changes between a right and a wrong one.
struct Changing {
  std::string type;
  std::vector<HostTensor> inputs;
  size_t table;  // which input has the number
  int64_t at;
  double right, wrong;
  RunOptions options = {};
};

template <class T>
void Change(const std::atomic<bool>& done, T* number, T right, T wrong) {
  while (!done.load(std::memory_order_relaxed)) {
    std::atomic_ref(*number).store(wrong, std::memory_order_relaxed);
    std::atomic_ref(*number).store(right, std::memory_order_relaxed);
  }
}

void RunWhileChanging(const TestNode& node, const Changing& call) {
  std::atomic<bool> done{false};
  const HostTensor& table = call.inputs[call.table];
  std::thread other([&] {
    if (table.dtype() == DType::kInt32) {
      Change(done, table.data<int32_t>() + call.at, static_cast<int32_t>(call.right), static_cast<int32_t>(call.wrong));
    } else {
      Change(done, table.data<int64_t>() + call.at, static_cast<int64_t>(call.right), static_cast<int64_t>(call.wrong));
    }
  });
  for (int i = 0; i < 300; ++i) {
    try {
      node.Run(call.inputs);
    } catch (const Error&) {  // the number was wrong when it was checked
    }
  }
  done = true;
  other.join();
}

// Four tokens of two sequences, whose states are in blocks.
std::vector<HostTensor> DeltaRule() {
  return {Floats({4, 1, 8}),   Floats({4, 1, 8}),         Floats({4, 2, 8}), Floats({4, 2, 8, 8}), HostTensor(),
          Int32s({2}, {1, 3}), Int32s({4}, {3, 0, 2, 1}), Int64s({1, 2}),    HostTensor(),         HostTensor()};
}

std::vector<Changing> ChangingCalls() {
  const RunOptions rows = {.attributes = {{"axis", Int(0)}}};
  const double far = static_cast<double>(kFar), far32 = 1 << 30;
  return {
      {"npu.aten::IndexCopy", {Floats({4, 8}), Int64s({0, 1, 2, 3}), Floats({4, 8})}, 1, 2, 2, far, rows},
      {"npu.aten::EmbeddingBag", {Floats({4, 8}), Int64s({0, 1, 2, 3}), Int64s({0, 2})}, 1, 2, 2, far, {.outputs = 4}},
      {"npu.aten::EmbeddingBag", {Floats({4, 8}), Int64s({0, 1, 2, 3}), Int64s({0, 2})}, 2, 1, 2, far, {.outputs = 4}},
      {"npu.aten::SearchSorted",
       {Floats({1, 4}), Floats({1, 64}), HostTensor::Of<int64_t>({1, 4}, {0, 1, 2, 3})},
       2,
       2,
       2,
       far},
      {"npu.aten::CtcLoss",
       {Floats({4, 1, 3}), HostTensor::Of<int64_t>({1, 1}, {1}), Int64s({4}), Int64s({1})},
       1,
       0,
       1,
       far,
       {.outputs = 2}},
      {"npu.aten::UniqueRuns", {HostTensor::Random(DType::kInt32, {64, 2}, 1, 0, 4)}, 0, 64, 0, far32, {.outputs = 2}},
      {"MaxUnpool",
       {Floats({1, 1, 2, 2}), HostTensor::Of<int64_t>({1, 1, 2, 2}, {0, 3, 8, 15}), HostTensor()},
       1,
       2,
       8,
       far,
       {.attributes = {{"kernel_shape", std::vector<int64_t>{2, 2}}, {"strides", std::vector<int64_t>{2, 2}}}}},
      {"ReverseSequence", {Floats({4, 4, 8}), Int64s({1, 2, 3, 4})}, 1, 2, 3, far},
      {"npu::NPUGatherSparseIndex", {Floats({4, 8}), Int64s({0, 1, 2, 3})}, 1, 2, 2, far},
      {"npu::NPUCrossEntropyLoss",
       {Floats({4, 8}), Int64s({0, 1, 2, 3})},
       1,
       2,
       2,
       far,
       {.attributes = {{"reduction", std::string("mean")},
                       {"ignore_index", Int(-100)},
                       {"label_smoothing", 0.0},
                       {"lse_square_scale_for_zloss", 0.0},
                       {"return_zloss", Int(0)}},
        .outputs = 4}},
      {"npu::NPUTopKTopP", {Floats({2, 64}), HostTensor(), Int32s({2}, {8, 8})}, 2, 1, 8, far32},
      {"npu::NPUMoeInitRouting",
       {Floats({4, 8}), Int32s({4, 2}, {0, 4, 1, 5, 2, 6, 3, 7}), Int32s({4, 2}, {1, 0, 1, 0, 2, 3, 2, 3})},
       1,
       4,
       2,
       far32,
       {.attributes = {{"active_num", Int(4)}}, .outputs = 3}},
      {"npu::NPUMoeInitRouting",
       {Floats({4, 8}), Int32s({4, 2}, {0, 4, 1, 5, 2, 6, 3, 7}), Int32s({4, 2}, {1, 0, 1, 0, 2, 3, 2, 3})},
       2,
       4,
       2,
       2000,
       {.attributes = {{"active_num", Int(4)}}, .outputs = 3}},
      {"npu::NPUMoeReRouting",
       {Floats({6, 8}), Int32s({2, 2}, {1, 2, 2, 1}), HostTensor()},
       1,
       2,
       2,
       far32,
       {.attributes = {{"expert_token_num_type", Int(1)}, {"idx_type", Int(0)}}, .outputs = 4}},
      {"npu::NPUMoeFinalizeRouting",
       {Floats({8, 8}), HostTensor(), HostTensor(), HostTensor(), Floats({4, 2}), Int32s({8}, {0, 1, 2, 3, 4, 5, 6, 7}),
        HostTensor()},
       5,
       4,
       4,
       far32,
       {.attributes = {{"drop_pad_mode", Int(0)}, {"k", Int(1)}}}},
      {"npu::NPURecurrentGatedDeltaRule", DeltaRule(), 5, 1, 3, far32, {.outputs = 2}},
      {"npu::NPURecurrentGatedDeltaRule", DeltaRule(), 6, 2, 2, far32, {.outputs = 2}},
      {"npu::NPUMoeComputeExpertTokens",
       {Int32s({8}, {0, 0, 1, 1, 2, 2, 3, 3})},
       0,
       4,
       2,
       far32,
       {.attributes = {{"num_experts", Int(4)}}}},
  };
}

TEST_CASE("numbers that another thread changes lead nowhere out of bounds") {
  if (kThreadSanitizer) return;  // it reports such races, which are the caller's fault
  for (const Changing& call : ChangingCalls()) {
    CAPTURE(call.type);
    CAPTURE(call.table);
    const TestNode node(call.type, call.options, call.inputs.size());
    HostTensor(call.inputs[call.table]).Set(call.at, call.right);  // the copy shares the memory
    const auto results = [&] { return node.Run(call.inputs)[0].values(); };
    const std::vector<double> expected = results();
    RunWhileChanging(node, call);
    CHECK(results() == expected);  // the number is right again
  }
}

}  // namespace
}  // namespace npu::test
