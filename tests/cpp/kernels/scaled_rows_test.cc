// Rows of int8 that end with their scale: ScaledRows against npu_dynamic_quant, ScaledRowAttention against
// npu_fused_infer_attention_score with the same scales beside the same integers, and of latents against a reference in
// double. Tensors end where their data ends, so that a sanitizer sees every access out of bounds.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
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

constexpr int32_t kTableEntries[] = {3, 1, 4, 0};  // two pages of each of two sequences; page 2 is of none

// Attention over latents of one head, which are keys and values, with rotated columns [kPages, kBlock, 1, rotated].
void CheckLatents(DType dtype, int64_t heads, int64_t rotated, const Case& c) {
  CAPTURE(NameOf(dtype));
  CAPTURE(heads);
  CAPTURE(rotated);
  CAPTURE(c.size);
  constexpr double kScale = 0.1;
  const int64_t tokens = c.ends.back();
  const HostTensor query = HostTensor::Random(dtype, {tokens, heads, c.size}, 3, -1, 1);
  const HostTensor query_rope = HostTensor::Random(dtype, {tokens, heads, rotated}, 5, -1, 1);
  HostTensor key_rope = HostTensor::Random(dtype, {kPages, kBlock, 1, rotated}, 6, -1, 1);
  const HostTensor integers = HostTensor::Random(DType::kInt8, {kPages, kBlock, 1, c.size}, 7);
  HostTensor scales = HostTensor::Random(DType::kFloat32, {kPages, kBlock, 1}, 8, 0.001, 0.01);
  // What no sequence has written may hold anything.
  for (int64_t i = 2 * kBlock; i < 3 * kBlock; ++i) {
    scales.Set(i, std::nan(""));
    for (int64_t d = 0; d < rotated; ++d) key_rope.Set(i * rotated + d, std::nan(""));
  }
  HostTensor mask = HostTensor::Random(DType::kBool, {2048, 2048}, 1);
  for (int64_t i = 0; i < mask.elements(); ++i) mask.Set(i, i % 2048 > i / 2048);
  const HostTensor table =
      HostTensor::Of(Shape{2, 2}, std::vector<int32_t>(std::begin(kTableEntries), std::end(kTableEntries)));
  RunOptions options;
  options.attributes = {{"num_heads", heads},
                        {"num_key_value_heads", int64_t{1}},
                        {"scale", kScale},
                        {"block_size", kBlock},
                        {"sparse_mode", int64_t{3}}};
  const HostTensor cache = Joined(integers, scales);
  const HostTensor found =
      RunOp("npu.fused::ScaledRowAttention",
            {query, cache, cache, mask, List(c.ends), List(c.lengths), table, query_rope, key_rope}, options)[0];
  REQUIRE(found.shape() == query.shape());
  double worst = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t sequence = t < c.ends[0] ? 0 : 1, first = sequence == 0 ? 0 : c.ends[0];
    const int64_t rows = c.ends[static_cast<size_t>(sequence)] - first;
    const int64_t seen = c.lengths[static_cast<size_t>(sequence)] - rows + (t - first) + 1;
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> sums(static_cast<size_t>(c.size));
      double total = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const int64_t at = kTableEntries[sequence * 2 + j / kBlock] * kBlock + j % kBlock;
        double dot = 0;
        for (int64_t d = 0; d < c.size; ++d)
          dot += query[(t * heads + h) * c.size + d] * integers[at * c.size + d] * scales[at];
        for (int64_t d = 0; d < rotated; ++d)
          dot += query_rope[(t * heads + h) * rotated + d] * key_rope[at * rotated + d];
        const double weight = std::exp(dot * kScale);
        total += weight;
        for (int64_t d = 0; d < c.size; ++d)
          sums[static_cast<size_t>(d)] += weight * integers[at * c.size + d] * scales[at];
      }
      for (int64_t d = 0; d < c.size; ++d) {
        const double wanted = seen > 0 ? sums[static_cast<size_t>(d)] / total : 0;
        const double error = std::abs(found[(t * heads + h) * c.size + d] - wanted);
        if (!(error <= worst)) worst = error;
      }
    }
  }
  // Values are below 1.3. Float32 sums 600 products in another order; 16-bit types round the result, and bfloat16 the
  // operands of products where there are instructions for pairs of them.
  CHECK(worst <= (dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 1e-3 : 1.2e-2));
}

TEST_CASE("ScaledRowAttention reads latents as keys and as values, and rotated columns of floats") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const int64_t heads : {1, 16, 37})
      for (const auto& [size, rotated] : {std::pair<int64_t, int64_t>{4, 1}, {20, 8}, {512, 64}}) {
        CheckLatents(dtype, heads, rotated, {size, {1, 2}, {16, 5}});   // one token each
        CheckLatents(dtype, heads, rotated, {size, {9, 10}, {9, 13}});  // a prompt, and a token
        CheckLatents(dtype, heads, rotated, {size, {0, 13}, {7, 13}});  // a sequence without queries
      }
}

TEST_CASE("ScaledRowAttention refuses rotated columns that are not beside every row") {
  const HostTensor query = HostTensor::Random(DType::kFloat32, {1, kHeads, 8}, 3), list = List({1});
  const HostTensor mask = HostTensor::Random(DType::kBool, {2048, 2048}, 1);
  const HostTensor table = HostTensor::Of(Shape{1, 1}, std::vector<int32_t>{0});
  const HostTensor cache = HostTensor::Random(DType::kInt8, {kPages, kBlock, 1, 12}, 1);
  RunOptions options;
  options.attributes = {{"num_heads", kHeads}, {"num_key_value_heads", int64_t{1}}, {"block_size", kBlock}};
  const auto columns = [](DType dtype, const Shape& shape) { return HostTensor::Random(dtype, shape, 4, -1, 1); };
  const HostTensor of_query = columns(DType::kFloat32, {1, kHeads, 6});
  const auto check = [&](const HostTensor& query_rope, const HostTensor& key_rope, const char* message) {
    CHECK_THROWS_WITH(RunOp("npu.fused::ScaledRowAttention",
                            {query, cache, cache, mask, list, list, table, query_rope, key_rope}, options),
                      doctest::Contains(message));
  };
  check(of_query, HostTensor(), "[ScaledRowAttention] expected query_rope and key_rope together, got only query_rope");
  check(HostTensor(), columns(DType::kFloat32, {kPages, kBlock, 1, 6}), "together, got only key_rope");
  check(of_query, columns(DType::kFloat32, {kPages, kBlock, 6}),
        "[ScaledRowAttention] expected key_rope of shape [pages, page rows, 1, columns]");
  check(of_query, columns(DType::kFloat32, {kPages, kBlock, 1, 7}), "expected key_rope of key's shape");
  check(of_query, columns(DType::kFloat32, {kPages - 1, kBlock, 1, 6}), "expected key_rope of key's shape");
  check(of_query, columns(DType::kFloat16, {kPages, kBlock, 1, 6}),
        "of query's dtype float32, got float32 and float16");
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
