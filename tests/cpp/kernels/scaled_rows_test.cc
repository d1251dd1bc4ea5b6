// Rows of int8 that end with their scale: ScaledRows against npu_dynamic_quant, ScaledRowAttention against
// npu_fused_infer_attention_score with the same scales beside the same integers. Tensors end where their data ends, so
// that a sanitizer sees every access out of bounds.
#include <cstring>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr int64_t kHeads = 4, kKeyHeads = 2, kBlock = 8, kPages = 5, kScaleBytes = 4;

// [.., D + 4] of integers [.., D] and scales [..].
HostTensor Joined(const HostTensor& integers, const HostTensor& scales) {
  Shape shape = integers.shape();
  const int64_t columns = shape.back(), row = columns + kScaleBytes;
  shape[shape.rank() - 1] = row;
  HostTensor out = HostTensor::Random(DType::kInt8, shape, 1);
  for (int64_t i = 0; i < scales.elements(); ++i) {
    const auto scale = static_cast<float>(scales[i]);
    int8_t bytes[kScaleBytes];
    std::memcpy(bytes, &scale, kScaleBytes);
    for (int64_t d = 0; d < columns; ++d) out.Set(i * row + d, integers[i * columns + d]);
    for (int64_t b = 0; b < kScaleBytes; ++b) out.Set(i * row + columns + b, bytes[b]);
  }
  return out;
}

TEST_CASE("ScaledRows has the integers and scales of npu_dynamic_quant") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const int64_t columns : {1, 4, 20, 64, 130}) {
      CAPTURE(NameOf(dtype));
      CAPTURE(columns);
      const HostTensor x = HostTensor::Random(dtype, {3, 5, columns}, 7, -3, 3);
      const std::vector<HostTensor> apart = RunOp("npu::NPUDynamicQuant", {x, HostTensor(), HostTensor()},
                                                  {.attributes = {{"quant_mode", "pertoken"}}, .outputs = 2});
      const HostTensor rows = RunOp("npu.fused::ScaledRows", {x})[0];
      REQUIRE(rows.shape() == Shape{3, 5, columns + kScaleBytes});
      CHECK(rows.values() == Joined(apart[0], apart[1]).values());
    }
}

struct Case {
  int64_t size;
  std::vector<int64_t> ends, lengths;  // of queries and of keys
};

HostTensor List(const std::vector<int64_t>& v) { return HostTensor::Of(Shape{static_cast<int64_t>(v.size())}, v); }

// A cache of pages [kPages, kBlock, kKeyHeads, size] as integers and scales [kPages, kBlock, kKeyHeads].
struct Cache {
  HostTensor integers, scales;

  Cache(int64_t size, uint64_t seed)
      : integers(HostTensor::Random(DType::kInt8, {kPages, kBlock, kKeyHeads, size}, seed)),
        scales(HostTensor::Random(DType::kFloat32, {kPages, kBlock, kKeyHeads}, seed + 1, 0.005, 0.02)) {}

  HostTensor Flat() const { return integers.As(DType::kInt8, {kPages, kBlock, integers.elements() / kPages / kBlock}); }
  // [kPages, kKeyHeads, kBlock], as antiquant mode 5 takes them.
  HostTensor HeadMajorScales() const {
    HostTensor out = HostTensor::Random(DType::kFloat32, {kPages, kKeyHeads, kBlock}, 1);
    for (int64_t page = 0; page < kPages; ++page)
      for (int64_t row = 0; row < kBlock; ++row)
        for (int64_t head = 0; head < kKeyHeads; ++head)
          out.Set((page * kKeyHeads + head) * kBlock + row, scales[(page * kBlock + row) * kKeyHeads + head]);
    return out;
  }
};

void CheckAttention(DType dtype, const Case& c) {
  CAPTURE(NameOf(dtype));
  CAPTURE(c.size);
  const HostTensor query = HostTensor::Random(dtype, {c.ends.back(), kHeads, c.size}, 3, -2, 2);
  const Cache keys(c.size, 4), values(c.size, 6);
  HostTensor mask = HostTensor::Random(DType::kBool, {2048, 2048}, 1);
  for (int64_t i = 0; i < mask.elements(); ++i) mask.Set(i, i % 2048 > i / 2048);
  const HostTensor table = HostTensor::Of(Shape{2, 2}, std::vector<int32_t>{3, 1, 4, 0});
  RunOptions options;
  options.attributes = {{"num_heads", kHeads},
                        {"num_key_value_heads", kKeyHeads},
                        {"scale", 0.2},
                        {"block_size", kBlock},
                        {"sparse_mode", int64_t{3}}};
  const HostTensor ends = List(c.ends), lengths = List(c.lengths);
  const HostTensor found = RunOp(
      "npu.fused::ScaledRowAttention",
      {query, Joined(keys.integers, keys.scales), Joined(values.integers, values.scales), mask, ends, lengths, table},
      options)[0];
  options.attributes.insert(
      {{"input_layout", std::string("TND")}, {"key_antiquant_mode", int64_t{5}}, {"value_antiquant_mode", int64_t{5}}});
  std::vector<HostTensor> all(27);
  all[0] = query, all[1] = keys.Flat(), all[2] = values.Flat(), all[4] = mask, all[5] = ends, all[6] = lengths;
  all[14] = keys.HeadMajorScales(), all[16] = values.HeadMajorScales(), all[18] = table;
  CHECK(found.values() == RunOp("npu::NPUFusedInferAttentionScore", all, options)[0].values());
}

TEST_CASE("ScaledRowAttention has the bits of attention with scales beside the cache") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const int64_t size : {4, 20, 64}) {
      CheckAttention(dtype, {size, {1, 2}, {16, 5}});     // one token each
      CheckAttention(dtype, {size, {9, 10}, {9, 13}});    // a prompt, and a token
      CheckAttention(dtype, {size, {12, 25}, {12, 13}});  // two prompts
    }
}

TEST_CASE("ScaledRowAttention refuses heads that are no elements and a scale") {
  const HostTensor query = HostTensor::Random(DType::kFloat32, {1, kHeads, 8}, 3), list = List({1});
  const HostTensor mask = HostTensor::Random(DType::kBool, {2048, 2048}, 1);
  const HostTensor table = HostTensor::Of(Shape{1, 1}, std::vector<int32_t>{0});
  RunOptions options;
  options.attributes = {{"num_heads", kHeads}, {"num_key_value_heads", kKeyHeads}, {"block_size", kBlock}};
  for (const int64_t bytes : {3, 4, 11}) {
    const HostTensor cache = HostTensor::Random(DType::kInt8, {kPages, kBlock, kKeyHeads, bytes}, 1);
    CHECK_THROWS_WITH(
        RunOp("npu.fused::ScaledRowAttention", {query, cache, cache, mask, list, list, table}, options),
        doctest::Contains("[ScaledRowAttention] expected key of int8, with heads of a multiple of 4 elements and their "
                          "scale, got int8 with heads of"));
  }
  const HostTensor flat = HostTensor::Random(DType::kInt8, {kPages, kBlock, 24}, 1);
  CHECK_THROWS_WITH(RunOp("npu.fused::ScaledRowAttention", {query, flat, flat, mask, list, list, table}, options),
                    doctest::Contains("[ScaledRowAttention] expected keys of shape [pages, page rows, 2, bytes]"));
}

}  // namespace
}  // namespace npu::test
