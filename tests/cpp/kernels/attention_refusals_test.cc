// Arguments that npu_fused_infer_attention_score must refuse.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_case.h"

namespace npu::test::attention {
namespace {

TEST_CASE("attention: bad attributes are refused") {
  CHECK(Has(ErrorOf({.layout = "XYZ"}), "expected input_layout"));
  CHECK(Has(ErrorOf({.heads = 6, .kv_heads = 4}), "to divide num_heads 6, got 4"));
  CHECK(Has(ErrorOf({.heads = 0, .kv_heads = 0}), "expected num_heads in [1, 2147483647], got 0"));
  CHECK(Has(ErrorOf({.mode = 5}), "expected sparse_mode 0, 1, 2, 3 or 4, got 5"));
  CHECK(Has(ErrorOf({.mode = -1}), "expected sparse_mode"));
  RunOptions options = OptionsOf({});
  options.attributes["num_key_value_heads"] = int64_t{-1};
  std::string message;
  try {
    RunOp(kType, MakeInputs({}).list(), options);
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(Has(message, "expected num_key_value_heads >= 0, got -1"));
}

TEST_CASE("attention: bad shapes and types are refused") {
  const Case c{.batch = 2, .heads = 4, .kv_heads = 2, .size = 16, .value_size = 16, .rows = 3, .keys = 8};
  const auto with = [&](auto&& change) {
    Inputs in = MakeInputs(c);
    change(in);
    return ErrorOf(c, in);
  };
  const auto random = [](std::vector<int64_t> dims, DType dtype = DType::kFloat32) {
    return HostTensor::Random(dtype, Shape(dims), 9);
  };
  CHECK(Has(with([&](Inputs& in) { in.query = random({2, 4, 48}); }), "expected query of shape [B, N, S, D]"));
  CHECK(Has(with([&](Inputs& in) { in.query = random({2, 5, 3, 16}); }), "expected 4 heads in query, got 5"));
  CHECK(Has(with([&](Inputs& in) { in.key = random({2, 4, 8, 16}); }), "expected 2 heads in key, got 4"));
  CHECK(Has(with([&](Inputs& in) { in.value = random({2, 1, 8, 16}); }), "expected 2 heads in value, got 1"));
  CHECK(Has(with([&](Inputs& in) { in.key = random({1, 2, 8, 16}); }), "query's batch size 2, got 1"));
  CHECK(Has(with([&](Inputs& in) { in.key = random({2, 2, 8, 17}); }), "query's head size 16, got 17"));
  CHECK(Has(with([&](Inputs& in) { in.value = random({2, 2, 9, 16}); }), "key's sequence length 8, got 9"));
  CHECK(Has(with([&](Inputs& in) { in.value = random({2, 2, 8, 0}); }), "head size from 1 to 512 in value, got 0"));
  CHECK(Has(with([&](Inputs& in) { in.value = random({2, 2, 8, 513}); }), "head size from 1 to 512"));
  CHECK(Has(with([&](Inputs& in) { in.key = random({2, 2, 8, 16}, DType::kFloat16); }), "of one dtype"));
  CHECK(Has(with([&](Inputs& in) { in.bias = random({2, 4, 3, 7}); }), "expected pse_shift of shape"));
  CHECK(Has(with([&](Inputs& in) { in.bias = random({3, 4, 3, 8}); }), "expected pse_shift of shape"));
  CHECK(Has(with([&](Inputs& in) { in.bias = random({1, 4, 3, 8}, DType::kFloat16); }),
            "expected pse_shift of float32 with query float32, got float16"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{8},
                                            {3, 7},
                                            {2, 8},
                                            {3, 3, 8},
                                            {2, 2, 3, 8},
                                            {2, 4, 3, 8},
                                            {1, 2, 1, 3, 8},
                                            {2048, 2048}}) {
    CHECK(Has(with([&](Inputs& in) { in.mask = HostTensor(DType::kBool, Shape(shape)); }), "expected atten_mask"));
  }
  const Case bsh{.layout = "BSH", .heads = 3, .size = 16, .value_size = 16, .rows = 2, .keys = 2};
  Inputs in = MakeInputs(bsh);
  in.query = random({1, 2, 50});
  CHECK(Has(ErrorOf(bsh, in), "a multiple of its 3 heads, got 50"));
  in.query = HostTensor();
  CHECK(Has(ErrorOf(bsh, in), "expected the tensors query, key and value"));
}

TEST_CASE("attention: bad lengths are refused") {
  const Case base{.batch = 2, .heads = 2, .size = 16, .value_size = 16, .rows = 3, .keys = 8};
  for (const auto& [lengths, message] : std::vector<std::pair<std::vector<int64_t>, std::string>>{
           {{9}, "in [0, 8], got 9"},
           {{8, -1}, "in [0, 8], got -1 for batch entry 1"},
           {{INT64_MAX, 1}, "in [0, 8], got 9223372036854775807"}}) {
    Case c = base;
    c.kv_lengths = lengths;
    CHECK(Has(ErrorOf(c), "expected actual_seq_lengths_kv " + message));
  }
  Case c = base;
  c.lengths = {4};
  CHECK(Has(ErrorOf(c), "expected actual_seq_lengths in [0, 3], got 4"));
  c = base;
  c.batch = 3;
  c.kv_lengths = {1, 2};
  CHECK(Has(ErrorOf(c), "with 1 or 3 entries, got 2"));
  Inputs in = MakeInputs(base);
  in.kv_lengths = HostTensor::Of<int64_t>(Shape{1, 2}, {1, 2});
  CHECK(Has(ErrorOf(base, in), "expected actual_seq_lengths_kv as a list"));
  in.kv_lengths = HostTensor(DType::kInt64, Shape{0});
  CHECK(Has(ErrorOf(base, in), "entries, got 0"));
}

TEST_CASE("attention: sparse modes 2 to 4 require the compressed mask") {
  for (int64_t mode : {2, 3, 4}) {
    CHECK(Has(ErrorOf({.rows = 3, .keys = 4, .mode = mode}), "got none"));
    CHECK(Has(ErrorOf({.rows = 3, .keys = 4, .mode = mode, .mask_shape = {3, 4}}), "got [3, 4]"));
  }
}

TEST_CASE("attention: unimplemented options are refused before the launch") {
  const OpDef* def = OpRegistry::Instance().Find("npu", "NPUFusedInferAttentionScore", 1);
  REQUIRE(def != nullptr);
  NodeView node;
  node.op_type = def->type;
  node.inputs.assign(27, DType::kUndefined);
  node.inputs[0] = node.inputs[1] = node.inputs[2] = DType::kFloat32;
  node.inputs[24] = node.inputs[25] = DType::kFloat32;
  node.output_count = 2;
  CHECK(WhyUnsupported(*def, node) == "");
  node.inputs[21] = node.inputs[22] = DType::kFloat32;
  CHECK(WhyUnsupported(*def, node).find("key_shared_prefix") != std::string::npos);
  node.inputs[21] = node.inputs[22] = DType::kUndefined;
  node.inputs[0] = node.inputs[1] = node.inputs[2] = DType::kInt8;
  CHECK(WhyUnsupported(*def, node) == "");
}

}  // namespace
}  // namespace npu::test::attention
