// Integer caches, paged caches, shared prefixes and left padding, each against the same call on plain floats; tensors
// end where their data ends, so that a sanitizer sees every access out of bounds.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr const char* kType = "npu::NPUFusedInferAttentionScore";
constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kSize = 24, kBlock = 8, kBlocks = 3;
constexpr int64_t kKeys = kBlock * kBlocks, kPages = kBatch * kBlocks;

// By name, in the order of the schema.
struct Inputs {
  HostTensor query = {}, key = {}, value = {}, key_lengths = {}, key_scale = {}, key_offset = {}, value_scale = {};
  HostTensor value_offset = {}, table = {}, query_padding = {}, key_padding = {}, key_prefix = {}, value_prefix = {};
  HostTensor output_scale = {}, lengths = {};

  std::vector<HostTensor> list() const {
    std::vector<HostTensor> all(27);
    const std::pair<size_t, const HostTensor*> places[] = {{0, &query},         {1, &key},         {2, &value},
                                                           {5, &lengths},       {6, &key_lengths}, {10, &output_scale},
                                                           {14, &key_scale},    {15, &key_offset}, {16, &value_scale},
                                                           {17, &value_offset}, {18, &table},      {19, &query_padding},
                                                           {20, &key_padding},  {21, &key_prefix}, {22, &value_prefix}};
    for (const auto& [place, tensor] : places) all[place] = *tensor;
    return all;
  }
};

RunOptions OptionsOf(int64_t mode) {
  return {.attributes = {{"num_heads", kHeads},
                         {"num_key_value_heads", kKeyHeads},
                         {"scale", 0.2},
                         {"input_layout", std::string("BNSD")},
                         {"block_size", kBlock},
                         {"key_antiquant_mode", mode},
                         {"value_antiquant_mode", mode},
                         {"softmax_lse_flag", int64_t{1}}},
          .outputs = 2};
}

HostTensor Query(int64_t rows, uint64_t seed = 1) {
  return HostTensor::Random(DType::kFloat32, {kBatch, kHeads, rows, kSize}, seed, -2, 2);
}
HostTensor List(const std::vector<int64_t>& v) { return HostTensor::Of(Shape{static_cast<int64_t>(v.size())}, v); }

void CheckClose(const std::vector<HostTensor>& got, const std::vector<HostTensor>& want, double tolerance = 2e-5) {
  for (size_t i = 0; i < want.size(); ++i) {
    REQUIRE(got[i].shape() == want[i].shape());
    for (int64_t e = 0; e < want[i].elements(); ++e) {
      const bool same = got[i][e] == want[i][e];  // also covers infinities
      CHECK((same || std::abs(got[i][e] - want[i][e]) <= tolerance * (1 + std::abs(want[i][e]))));
    }
  }
}

// Pages [page][head][row][column]; page i belongs to sequence i % 2, in order.
int64_t PageOf(int64_t sequence, int64_t block) { return block * kBatch + sequence; }
HostTensor Table() {
  std::vector<int32_t> table;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t block = 0; block < kBlocks; ++block) table.push_back(static_cast<int32_t>(PageOf(b, block)));
  }
  return HostTensor::Of(Shape{kBatch, kBlocks}, table);
}

int64_t ScaleIndex(int64_t mode, int64_t page, int64_t head, int64_t row, int64_t column) {
  const int64_t sequence = page % kBatch, position = page / kBatch * kBlock + row;
  switch (mode) {
    case 0:
      return head * kSize + column;
    case 1:
      return sequence * kKeys + position;
    case 2:
      return head;
    case 3:
      return (sequence * kKeyHeads + head) * kKeys + position;
    case 4:
      return page * kBlock + row;
    default:
      return (page * kKeyHeads + head) * kBlock + row;
  }
}
Shape ScaleShape(int64_t mode) {
  const Shape shapes[] = {{kKeyHeads, kSize},         {kBatch, kKeys},  {kKeyHeads},
                          {kBatch, kKeyHeads, kKeys}, {kPages, kBlock}, {kPages, kKeyHeads, kBlock}};
  return shapes[mode];
}

struct Integers {
  HostTensor stored, scale, offset, numbers;  // numbers: the dequantised values
};

// `piece`: elements per piece of a block in device order; 0: plain order.
Integers MakeIntegers(bool int4, int64_t mode, int64_t piece, uint64_t seed) {
  const Shape pages{kPages, kKeyHeads, kBlock, kSize};
  const double limit = int4 ? 8 : 128;
  const HostTensor plain = HostTensor::Random(DType::kFloat32, pages, seed, -limit, limit);
  const int64_t width = int4 ? kSize / 8 : kSize;
  const Shape stored =
      piece == 0 ? Shape{kPages, kKeyHeads, kBlock, width} : Shape{kPages, kKeyHeads, width / piece, kBlock, piece};
  Integers made{HostTensor(int4 ? DType::kInt32 : DType::kInt8, stored),
                HostTensor::Random(DType::kFloat32, ScaleShape(mode), seed + 1, 0.2 / limit, 1 / limit),
                HostTensor::Random(DType::kFloat32, ScaleShape(mode), seed + 2, -3, 3),
                HostTensor(DType::kFloat32, pages)};
  for (int64_t i = 0; i < made.stored.elements(); ++i) made.stored.Set(i, 0);
  int64_t e = 0;
  for (int64_t page = 0; page < kPages; ++page) {
    for (int64_t head = 0; head < kKeyHeads; ++head) {
      for (int64_t row = 0; row < kBlock; ++row) {
        for (int64_t d = 0; d < kSize; ++d, ++e) {
          const double x = std::floor(plain[e]);
          const int64_t column = int4 ? d / 8 : d, lead = page * kKeyHeads + head;
          const int64_t at = piece == 0
                                 ? (lead * kBlock + row) * width + column
                                 : ((lead * (width / piece) + column / piece) * kBlock + row) * piece + column % piece;
          if (int4) {
            made.stored.data<uint32_t>()[at] |= (static_cast<uint32_t>(static_cast<int32_t>(x)) & 15u) << (d % 8 * 4);
          } else {
            made.stored.Set(at, x);
          }
          const int64_t s = ScaleIndex(mode, page, head, row, d);
          made.numbers.Set(e, (x + made.offset[s]) * made.scale[s]);
        }
      }
    }
  }
  return made;
}

TEST_CASE("attention caches: quantised caches equal their dequantised values, in every mode and layout") {
  for (bool int4 : {false, true}) {
    for (int64_t mode = 0; mode < 6; ++mode) {
      for (int64_t piece : {0, int4 ? 1 : 8}) {
        for (int64_t rows : {1, 3, 20}) {
          CAPTURE(int4);
          CAPTURE(mode);
          CAPTURE(piece);
          CAPTURE(rows);
          const Integers key = MakeIntegers(int4, mode, piece, 10), value = MakeIntegers(int4, mode, piece, 20);
          Inputs in{.query = Query(rows), .key = key.numbers, .value = value.numbers, .key_lengths = List({kKeys, 11})};
          in.table = Table();
          const std::vector<HostTensor> want = RunOp(kType, in.list(), OptionsOf(0));
          in.key = key.stored;
          in.value = value.stored;
          in.key_scale = key.scale;
          in.key_offset = key.offset;
          in.value_scale = value.scale;
          in.value_offset = value.offset;
          CheckClose(RunOp(kType, in.list(), OptionsOf(mode)), want);
        }
      }
    }
  }
}

TEST_CASE("attention caches: a block index outside the cache is an error in every quantisation mode") {
  for (int64_t mode : {0, 1, 4, 5}) {
    for (int32_t entry : {-1, static_cast<int32_t>(kPages), INT32_MIN, INT32_MAX}) {
      const Integers cache = MakeIntegers(false, mode, 8, 10);
      Inputs in{.query = Query(2), .key = cache.stored, .value = cache.stored, .key_lengths = List({kKeys})};
      in.key_scale = in.value_scale = cache.scale;
      in.table = Table();
      in.table.data<int32_t>()[4] = entry;
      CHECK_THROWS_WITH_AS(RunOp(kType, in.list(), OptionsOf(mode)),
                           doctest::Contains("expected block_table entries in [0, 6), got"), Error);
      in.key_lengths = List({kKeys, kBlock});  // not read
      CHECK_NOTHROW(RunOp(kType, in.list(), OptionsOf(mode)));
    }
  }
}

TEST_CASE("attention caches: a shared prefix and left padding equal shifted rows") {
  const auto random = [](int64_t batch, int64_t rows, uint64_t seed) {
    return HostTensor::Random(DType::kFloat32, {batch, kKeyHeads, rows, kSize}, seed, -2, 2);
  };
  constexpr int64_t kPrefix = 5, kOwn = 30;
  for (int64_t rows : {1, 2, 21}) {
    CAPTURE(rows);
    Inputs in{.query = Query(rows), .key = random(kBatch, kOwn, 2), .value = random(kBatch, kOwn, 3)};
    in.key_prefix = random(1, kPrefix, 4);
    in.value_prefix = random(1, kPrefix, 5);
    const auto joined = [&](const HostTensor& prefix, const HostTensor& own) {
      HostTensor all(DType::kFloat32, {kBatch, kKeyHeads, kPrefix + kOwn, kSize});
      for (int64_t i = 0; i < all.elements(); ++i) {
        const int64_t d = i % kSize, row = i / kSize % (kPrefix + kOwn), lead = i / kSize / (kPrefix + kOwn);
        all.Set(i, row < kPrefix ? prefix[(lead % kKeyHeads * kPrefix + row) * kSize + d]
                                 : own[(lead * kOwn + row - kPrefix) * kSize + d]);
      }
      return all;
    };
    Inputs whole{.query = in.query, .key = joined(in.key_prefix, in.key), .value = joined(in.value_prefix, in.value)};
    CheckClose(RunOp(kType, in.list(), OptionsOf(0)), RunOp(kType, whole.list(), OptionsOf(0)));
  }
  for (int64_t padding : {int64_t{-1}, int64_t{0}, int64_t{4}, kOwn, INT64_MAX, INT64_MIN}) {
    CAPTURE(padding);
    Inputs in{.query = Query(3), .key = random(kBatch, kOwn, 2), .value = random(kBatch, kOwn, 3)};
    in.lengths = List({1});
    in.key_lengths = List({0, 26});
    in.query_padding = List({padding});
    in.key_padding = List({padding});
    const std::vector<HostTensor> got = RunOp(kType, in.list(), OptionsOf(0));
    const int64_t row = 2 - std::max<int64_t>(padding, 0);  // the only row that is not padding
    for (int64_t i = 0; i < got[1].elements(); ++i) {
      const bool sees = i / (kHeads * 3) == 1 && i % 3 == row && padding <= 4;
      CHECK(std::isfinite(got[1][i]) == sees);
    }
  }
}

TEST_CASE("attention caches: int8 results saturate") {
  Inputs in{.query = Query(5), .key = Query(9, 2), .value = Query(9, 3)};
  RunOptions options = OptionsOf(0);
  options.attributes["num_key_value_heads"] = int64_t{0};
  const HostTensor plain = RunOp(kType, in.list(), options)[0];
  for (double scale : {0.0, 50.0, -1e30, 1e30}) {
    in.output_scale = HostTensor::From(DType::kFloat32, {1}, {scale});
    const HostTensor got = RunOp(kType, in.list(), options)[0];
    REQUIRE(got.dtype() == DType::kInt8);
    for (int64_t i = 0; i < got.elements(); ++i) {
      CHECK(std::abs(got[i] - std::clamp(plain[i] * scale, -128.0, 127.0)) <= 0.5 + 1e-3);
    }
  }
}

}  // namespace
}  // namespace npu::test
