// Packed sequences, paged caches and rope parts of npu_fused_infer_attention_score.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_case.h"

namespace npu::test::attention {
namespace {

// They are compared with the plain forms, which attention_test.cc compares with a reference in double.

constexpr size_t kBlockTable = 18, kQueryRope = 24, kKeyRope = 25;

HostTensor List(const std::vector<int64_t>& values) {
  return HostTensor::Of(Shape{static_cast<int64_t>(values.size())}, values);
}

// Elements [begin, begin + n) of a tensor, under another shape.
HostTensor Part(const HostTensor& t, int64_t begin, const Shape& shape) {
  HostTensor part(t.dtype(), shape);
  for (int64_t i = 0; i < part.elements(); ++i) part.Set(i, t[begin + i]);
  return part;
}

// float32 sums may have another order if keys are split between threads differently.
void CheckSame(const HostTensor& got, int64_t begin, const HostTensor& want) {
  double worst = 0;
  for (int64_t i = 0; i < want.elements(); ++i) {
    const double error = got[begin + i] == want[i] ? 0 : std::fabs(got[begin + i] - want[i]);
    if (!(error <= worst)) worst = error;
  }
  CHECK(worst <= (got.dtype() == DType::kFloat32 ? 2e-6 : got.dtype() == DType::kFloat16 ? 1e-3 : 8e-3));
}

TEST_CASE("attention: packed sequences equal separate calls") {
  const int64_t heads = 6, kv = 2, size = 32, queries = 150, keys = 310;
  const std::vector<int64_t> ends = {1, 40, 40, 145}, key_ends = {70, 110, 150, 300};
  for (DType dtype : kDTypes) {
    for (int64_t mode : {0, 2, 3, 4}) {
      Case c{.dtype = dtype, .layout = "TND", .heads = heads, .kv_heads = kv, .mode = mode, .pre = 9, .next = 3};
      const HostTensor q = HostTensor::Random(dtype, Shape{queries, heads, size}, 1);
      const HostTensor k = HostTensor::Random(dtype, Shape{keys, kv, size}, 2);
      const HostTensor v = HostTensor::Random(dtype, Shape{keys, kv, size}, 3);
      const HostTensor mask = mode >= 2 ? HostTensor(DType::kBool, Shape{2048, 2048}) : HostTensor();
      const std::vector<HostTensor> got = RunOp(kType, {q, k, v, {}, mask, List(ends), List(key_ends)}, OptionsOf(c));
      REQUIRE(got[0].shape() == Shape{queries, heads, size});
      REQUIRE(got[1].shape() == Shape{queries, heads, 1});
      int64_t begin = 0, key_begin = 0;
      for (size_t b = 0; b < ends.size(); ++b) {
        const int64_t n = ends[b] - begin, m = key_ends[b] - key_begin;
        // A single query ignores patterns unless it is packed: two rows, the second unused.
        const int64_t rows = std::max<int64_t>(n, 2);
        Case alone = c;
        alone.layout = "BSND";
        std::vector<double> padded = Part(q, begin * heads * size, Shape{n, heads, size}).values();
        padded.resize(static_cast<size_t>(rows * heads * size));
        const std::vector<HostTensor> want = RunOp(kType,
                                                   {HostTensor::From(dtype, Shape{1, rows, heads, size}, padded),
                                                    Part(k, key_begin * kv * size, Shape{1, m, kv, size}),
                                                    Part(v, key_begin * kv * size, Shape{1, m, kv, size}),
                                                    {},
                                                    mask,
                                                    List({n}),
                                                    List({m})},
                                                   OptionsOf(alone));
        CheckSame(got[0], begin * heads * size, Part(want[0], 0, Shape{n, heads, size}));
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t h = 0; h < heads; ++h) {
            const double g = got[1][(begin + i) * heads + h], w = want[1][h * rows + i];
            CHECK((g == w || std::fabs(g - w) < 1e-5));
          }
        }
        begin = ends[b];
        key_begin = key_ends[b];
      }
      for (int64_t i = begin * heads * size; i < got[0].elements(); ++i) REQUIRE(got[0][i] == 0.0);
    }
  }
}

TEST_CASE("attention: head-major packed layouts give the same results") {
  const int64_t heads = 4, size = 16, queries = 9, keys = 20;
  const HostTensor q = HostTensor::Random(DType::kFloat32, Shape{queries, heads, size}, 1);
  const HostTensor k = HostTensor::Random(DType::kFloat32, Shape{keys, heads, size}, 2);
  const auto turned = [](const HostTensor& t) {
    const Shape& s = t.shape();
    HostTensor out(t.dtype(), Shape{s[1], s[0], s[2]});
    for (int64_t a = 0; a < s[0]; ++a)
      for (int64_t b = 0; b < s[1]; ++b)
        for (int64_t d = 0; d < s[2]; ++d) out.Set((b * s[0] + a) * s[2] + d, t[(a * s[1] + b) * s[2] + d]);
    return out;
  };
  const auto run = [&](const char* layout, const HostTensor& query, const HostTensor& key) {
    return RunOp(kType, {query, key, key, {}, {}, List({4, 9}), List({12, 20})},
                 OptionsOf({.layout = layout, .heads = heads, .kv_heads = heads}));
  };
  const std::vector<HostTensor> want = run("TND", q, k);
  CHECK(turned(run("TND_NTD", q, k)[0]).values() == want[0].values());
  CHECK(turned(run("NTD", turned(q), turned(k))[0]).values() == want[0].values());
  CHECK(run("NTD_TND", turned(q), turned(k))[0].values() == want[0].values());
  CHECK(run("NTD_TND", turned(q), turned(k))[1].values() == want[1].values());
}

// The first lengths[b] rows of [batch, capacity, heads, size], copied to the pages of a table; the rest is NaN.
HostTensor ToPages(const HostTensor& rows, const std::vector<int64_t>& lengths, const HostTensor& table,
                   int64_t page_count, int64_t page_rows, bool flat) {
  const Shape& s = rows.shape();
  const int64_t heads = s[2], size = s[3];
  HostTensor cache(rows.dtype(),
                   flat ? Shape{page_count, page_rows, heads * size} : Shape{page_count, heads, page_rows, size});
  for (int64_t i = 0; i < cache.elements(); ++i) cache.Set(i, std::nan(""));
  for (int64_t b = 0; b < s[0]; ++b) {
    for (int64_t j = 0; j < lengths[static_cast<size_t>(b)]; ++j) {
      const auto page = static_cast<int64_t>(table[b * table.shape()[1] + j / page_rows]);
      const int64_t slot = j % page_rows;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t to =
            (flat ? (page * page_rows + slot) * heads + h : (page * heads + h) * page_rows + slot) * size;
        for (int64_t d = 0; d < size; ++d) cache.Set(to + d, rows[((b * s[1] + j) * heads + h) * size + d]);
      }
    }
  }
  return cache;
}

// Every page except the first, in shuffled order. Entries beyond a sequence's length are never read.
HostTensor ScrambledTable(int64_t width, const std::vector<int64_t>& lengths, int64_t page_rows) {
  const auto batch = static_cast<int64_t>(lengths.size());
  HostTensor table(DType::kInt32, Shape{batch, width});
  REQUIRE(std::gcd(batch * width, int64_t{7}) == 1);
  for (int64_t i = 0; i < table.elements(); ++i) {
    const bool used = i % width * page_rows < lengths[static_cast<size_t>(i / width)];
    table.Set(i, used ? static_cast<double>((i * 7 + 3) % (batch * width) + 1) : i % 2 == 0 ? -1.0 : 1e9);
  }
  return table;
}

TEST_CASE("attention: paged caches, and separate rope inputs") {
  const int64_t capacity = 200;
  const std::vector<int64_t> lengths = {capacity, 77};
  for (DType dtype : kDTypes) {
    for (int64_t page_rows : {1, 16, 40, 128}) {
      for (int64_t rows : {2, 30}) {  // a single query keeps its pattern only with separate rope inputs
        Case c{.dtype = dtype,
               .layout = "BSND",
               .batch = 2,
               .heads = 6,
               .kv_heads = 2,
               .size = 48,
               .value_size = 16,
               .rows = rows,
               .keys = capacity,
               .mode = 3,
               .mask_shape = {2048, 2048},
               .kv_lengths = lengths};
        const Inputs in = MakeInputs(c);
        const std::vector<HostTensor> want = RunOp(kType, in.list(), OptionsOf(c));
        const int64_t width = (capacity + page_rows - 1) / page_rows, pages = 2 * width + 1;
        const HostTensor table = ScrambledTable(width, lengths, page_rows);
        const auto columns = [](const HostTensor& t, int64_t begin, int64_t n) {
          const Shape& s = t.shape();
          HostTensor out(t.dtype(), Shape{s[0], s[1], s[2], n});
          for (int64_t i = 0; i < out.elements(); ++i) out.Set(i, t[i / n * s[3] + begin + i % n]);
          return out;
        };
        const auto check = [&](std::vector<HostTensor> inputs) {
          RunOptions options = OptionsOf(c);
          options.attributes["block_size"] = page_rows;
          const std::vector<HostTensor> got = RunOp(kType, std::move(inputs), options);
          CheckSame(got[0], 0, want[0]);
          CheckSame(got[1], 0, want[1]);
        };
        std::vector<HostTensor> inputs = in.list();
        inputs.resize(27);
        inputs[0] = columns(in.query, 0, 32);
        inputs[1] = columns(in.key, 0, 32);
        inputs[kQueryRope] = columns(in.query, 32, 16);
        inputs[kKeyRope] = columns(in.key, 32, 16);
        INFO("pages of ", page_rows, " rows, queries ", rows);
        check(inputs);
        for (bool flat : {true, false}) {
          inputs[1] = ToPages(columns(in.key, 0, 32), lengths, table, pages, page_rows, flat);
          inputs[2] = ToPages(in.value, lengths, table, pages, page_rows, flat);
          inputs[kKeyRope] = ToPages(columns(in.key, 32, 16), lengths, table, pages, page_rows, flat);
          inputs[kBlockTable] = table;
          check(inputs);
          std::vector<HostTensor> joined = inputs;
          joined[0] = in.query;
          joined[1] = ToPages(in.key, lengths, table, pages, page_rows, flat);
          joined[kQueryRope] = joined[kKeyRope] = HostTensor();
          check(joined);
        }
      }
    }
  }
}

TEST_CASE("attention: paged decode") {
  for (DType dtype : kDTypes) {
    for (int64_t page_rows : {16, 128, 256}) {
      const std::vector<int64_t> lengths = {1000, 257};
      Case c{.dtype = dtype,
             .layout = "BSH",
             .batch = 2,
             .heads = 6,
             .kv_heads = 2,
             .rows = 1,
             .keys = 1024,
             .kv_lengths = lengths};
      const Inputs in = MakeInputs(c);
      const std::vector<HostTensor> want = RunOp(kType, in.list(), OptionsOf(c));
      const int64_t width = 1024 / page_rows;
      std::vector<HostTensor> inputs = in.list();
      inputs.resize(27);
      inputs[kBlockTable] = ScrambledTable(width, lengths, page_rows);
      for (size_t i : {1, 2}) {
        const HostTensor rows = Part(inputs[i], 0, Shape{2, 1024, 2, 64});
        inputs[i] = ToPages(rows, lengths, inputs[kBlockTable], 2 * width + 1, page_rows, true);
      }
      RunOptions options = OptionsOf(c);
      options.attributes["block_size"] = page_rows;
      const std::vector<HostTensor> got = RunOp(kType, inputs, options);
      CheckSame(got[0], 0, want[0]);
      CheckSame(got[1], 0, want[1]);
    }
  }
}

// Threads take all heads of a sequence at a time, and prefetch the next sequence as far as its length, whose pages are
// more than are found at once.
TEST_CASE("attention: decode of more sequences than threads") {
  constexpr int64_t kBatch = 33, kKeys = 304, kPageRows = 16, kWidth = kKeys / kPageRows;
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < kBatch; ++b) lengths.push_back(b * 29 % (kKeys + 1));
  for (DType dtype : kDTypes) {
    for (int64_t size : {64, 40}) {
      const Case c{.dtype = dtype,
                   .layout = "BSH",
                   .batch = kBatch,
                   .heads = 6,
                   .kv_heads = 2,
                   .size = size,
                   .value_size = size,
                   .rows = 1,
                   .keys = kKeys,
                   .kv_lengths = lengths};
      Check(c);
      const Inputs in = MakeInputs(c);
      std::vector<HostTensor> inputs = in.list();
      inputs.resize(27);
      inputs[kBlockTable] = ScrambledTable(kWidth, lengths, kPageRows);
      for (size_t i : {1, 2}) {
        const HostTensor rows = Part(inputs[i], 0, Shape{kBatch, kKeys, 2, size});
        inputs[i] = ToPages(rows, lengths, inputs[kBlockTable], kBatch * kWidth + 1, kPageRows, true);
      }
      RunOptions options = OptionsOf(c);
      options.attributes["block_size"] = kPageRows;
      const std::vector<HostTensor> got = RunOp(kType, inputs, options);
      CheckSame(got[0], 0, RunOp(kType, in.list(), OptionsOf(c))[0]);
    }
  }
}

TEST_CASE("attention: a page outside the cache fails that launch only") {
  for (int64_t rows : {1, 20}) {
    for (int32_t entry : {-1, 3, INT32_MAX, INT32_MIN}) {
      const Case c{.layout = "BSND", .heads = 2, .kv_heads = 2, .rows = rows, .keys = 40, .kv_lengths = {40}};
      std::vector<HostTensor> inputs = MakeInputs(c).list();
      inputs.resize(27);
      inputs[1] = inputs[2] = HostTensor::Random(DType::kFloat32, Shape{3, 16, 128}, 1);
      inputs[kBlockTable] = HostTensor::Of<int32_t>(Shape{1, 3}, {0, 1, entry});
      RunOptions options = OptionsOf(c);
      options.attributes["block_size"] = int64_t{16};
      std::string message;
      try {
        RunOp(kType, inputs, options);
      } catch (const Error& e) {
        message = e.what();
      }
      CHECK(message.find("expected block_table entries in [0, 3), got " + std::to_string(entry)) != std::string::npos);
      inputs[kBlockTable] = HostTensor::Of<int32_t>(Shape{1, 3}, {0, 1, 2});
      CHECK(std::isfinite(RunOp(kType, inputs, options)[0][0]));
    }
  }
}

TEST_CASE("attention: bad packed, paged and rope arguments are refused") {
  const auto error = [](const Case& c, std::vector<HostTensor> inputs, int64_t block_size = 0) -> std::string {
    RunOptions options = OptionsOf(c);
    options.attributes["block_size"] = block_size;
    try {
      RunOp(kType, std::move(inputs), options);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto random = [](std::vector<int64_t> dims) { return HostTensor::Random(DType::kFloat32, Shape(dims), 9); };
  const Case packed{.layout = "TND", .heads = 2, .kv_heads = 1};
  const std::vector<HostTensor> qkv = {random({6, 2, 16}), random({9, 1, 16}), random({9, 1, 16}), {}, {}};
  const auto with_ends = [&](HostTensor ends, HostTensor key_ends) {
    std::vector<HostTensor> inputs = qkv;
    inputs.push_back(std::move(ends));
    inputs.push_back(std::move(key_ends));
    return inputs;
  };
  CHECK(error(packed, with_ends(List({2, 6}), List({4, 9}))) == "");
  CHECK(error(packed, with_ends(List({}), List({}))) == "");
  CHECK(Has(error(packed, qkv), "expected actual_seq_lengths and actual_seq_lengths_kv for input_layout TND"));
  CHECK(Has(error(packed, with_ends(List({6}), {})), "expected actual_seq_lengths and actual_seq_lengths_kv"));
  CHECK(Has(error(packed, with_ends(List({4, 2}), List({4, 9}))), "to ascend within [0, 6], got 2 behind 4"));
  CHECK(Has(error(packed, with_ends(List({4, 7}), List({4, 9}))), "to ascend within [0, 6], got 7 behind 4"));
  CHECK(Has(error(packed, with_ends(List({-1}), List({4}))), "got -1 behind 0"));
  CHECK(Has(error(packed, with_ends(List({4, 6}), List({10, 12}))), "actual_seq_lengths_kv to ascend within [0, 9]"));
  CHECK(Has(error(packed, with_ends(List({4, 6}), List({9}))), "actual_seq_lengths_kv with 2 entries, got 1"));
  std::vector<HostTensor> masked = with_ends(List({2, 6}), List({4, 9}));
  masked[4] = HostTensor(DType::kBool, Shape{6, 9});
  CHECK(error(packed, masked) == "");
  masked[4] = HostTensor(DType::kBool, Shape{3, 9});
  CHECK(Has(error(packed, masked), "expected atten_mask of shape [>= 4, >= 5], [1 or 2, >= 4, >= 5] or"));
  masked[4] = HostTensor(DType::kBool, Shape{0, 9});
  CHECK(Has(error(packed, masked), "for input_layout TND, got [0, 9]"));
  masked[4] = {};
  masked[3] = random({1, 2, 6, 9});
  CHECK(error(packed, masked) == "");
  masked[3] = random({2, 2, 4, 4});
  CHECK(Has(error(packed, masked), "expected pse_shift of shape [1 or 2, 2, 1 or >= 4, >= 5], got [2, 2, 4, 4]"));

  const Case paged{.layout = "BSH", .batch = 2, .heads = 2, .kv_heads = 2, .size = 16, .value_size = 16, .rows = 3};
  const auto pages = [&](const Shape& cache, const Shape& table, HostTensor lengths, DType dtype = DType::kInt32) {
    std::vector<HostTensor> inputs(27);
    inputs[0] = random({2, 3, 32});
    inputs[1] = inputs[2] = HostTensor::Random(DType::kFloat32, cache, 1);
    inputs[6] = std::move(lengths);
    inputs[kBlockTable] = HostTensor(dtype, table);
    for (int64_t i = 0; i < inputs[kBlockTable].elements(); ++i) inputs[kBlockTable].Set(i, 0);
    return inputs;
  };
  CHECK(error(paged, pages({5, 8, 32}, {2, 4}, List({32, 0})), 8) == "");
  CHECK(error(paged, pages({0, 8, 32}, {2, 0}, List({0, 0})), 8) == "");
  CHECK(Has(error(paged, pages({5, 8, 32}, {2, 4}, {}), 8), "actual_seq_lengths_kv with block_table, got none"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {2, 4}, List({33, 0})), 8), "in [0, 32], got 33"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {2, 4}, List({1})), 0), "block_size >= 1 with block_table, got 0"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {2, 4}, List({1})), 16), "blocks of block_size 16 rows in key"));
  CHECK(Has(error(paged, pages({5, 8, 33}, {2, 4}, List({1})), 8), "expected 2 heads in key"));
  CHECK(Has(error(paged, pages({5, 3, 8, 16}, {2, 4}, List({1})), 8), "expected 2 heads in key"));
  CHECK(Has(error(paged, pages({5, 8}, {2, 4}, List({1})), 8), "expected key with block_table of shape"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {3, 4}, List({1})), 8), "expected block_table int32"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {8}, List({1})), 8), "expected block_table int32"));
  CHECK(Has(error(paged, pages({5, 8, 32}, {2, 4}, List({1}), DType::kInt64), 8), "expected block_table int32"));
  std::vector<HostTensor> inputs = pages({5, 8, 32}, {2, 4}, List({1}));
  inputs[2] = random({4, 8, 32});
  CHECK(Has(error(paged, inputs, 8), "expected value of key's 5 blocks, got 4"));

  inputs.assign(27, HostTensor());
  inputs[0] = inputs[1] = inputs[2] = random({2, 3, 32});
  inputs[kQueryRope] = random({2, 3, 8});
  CHECK(Has(error(paged, inputs), "together, got only query_rope"));
  inputs[kKeyRope] = random({2, 3, 16});
  CHECK(Has(error(paged, inputs), "expected key_rope of key's shape with query_rope's head size 4"));
  inputs[kKeyRope] = random({2, 2, 8});
  CHECK(Has(error(paged, inputs), "expected key_rope of key's shape"));
  inputs[kKeyRope] = random({2, 3, 8});
  CHECK(error(paged, inputs) == "");
  inputs[kQueryRope] = random({2, 2, 8});
  CHECK(Has(error(paged, inputs), "expected query_rope of query's shape but for the head size"));
}

}  // namespace
}  // namespace npu::test::attention
