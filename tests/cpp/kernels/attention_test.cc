// npu_fused_infer_attention_score against a naive reference in double.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_case.h"

namespace npu::test::attention {
namespace {

TEST_CASE("attention: layouts of input and output") {
  for (const char* layout :
       {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"}) {
    CheckDTypes(
        {.layout = layout, .batch = 2, .heads = 6, .kv_heads = 2, .size = 32, .value_size = 48, .rows = 9, .keys = 21});
    CheckDTypes(
        {.layout = layout, .batch = 2, .heads = 6, .kv_heads = 3, .size = 32, .value_size = 16, .rows = 1, .keys = 70});
  }
}

TEST_CASE("attention: large head sizes and ones that are not a multiple of the vector width") {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {2, 3}, {16, 16}, {33, 17}, {80, 96}, {192, 128}, {512, 512}};
  for (const auto& [size, value_size] : sizes) {
    for (int64_t rows : {1, 3, 40}) {
      CheckDTypes({.heads = 2,
                   .size = size,
                   .value_size = value_size,
                   .rows = rows,
                   .keys = 67,
                   .scale = 1 / std::sqrt(static_cast<double>(size)),
                   .mode = 1});
    }
  }
}

TEST_CASE("attention: groups of query heads") {
  const std::pair<int64_t, int64_t> heads[] = {{9, 3}, {14, 2}, {8, 1}, {20, 1}, {64, 1}, {5, 5}};
  for (const auto& [n, kv] : heads) {
    for (int64_t rows : {1, 2, 30}) {
      CheckDTypes({.layout = "BSND",
                   .batch = 2,
                   .heads = n,
                   .kv_heads = kv,
                   .size = 16,
                   .value_size = 16,
                   .rows = rows,
                   .keys = 131,
                   .mode = 3,
                   .mask_shape = {2048, 2048}});
    }
  }
}

// Keys are multiplied eight at a time and values two at a time, columns in groups of 16 to 64.
TEST_CASE("attention: decode of every number of rows and keys that are left over") {
  for (int64_t rows = 1; rows <= 8; ++rows) {
    for (int64_t size : {32, 64, 80, 96, 128}) {
      for (int64_t keys : {1, 2, 7, 8, 15, 129, 137}) {
        CheckDTypes({.heads = rows,
                     .kv_heads = 1,
                     .size = size,
                     .value_size = size,
                     .rows = 1,
                     .keys = keys,
                     .scale = 1 / std::sqrt(static_cast<double>(size))});
      }
    }
  }
}

TEST_CASE("attention: sparse modes with and without a past") {
  for (int64_t mode : {2, 3, 4}) {
    for (int64_t rows : {1, 5, 64, 150}) {
      for (int64_t keys : {5, 64, 150, 300}) {
        Case c{.batch = 2,
               .heads = 4,
               .kv_heads = 2,
               .size = 16,
               .value_size = 16,
               .rows = rows,
               .keys = keys,
               .mode = mode,
               .pre = 20,
               .next = 7,
               .mask_shape = {1, 1, 2048, 2048},
               .mask_dtype = DType::kInt8};
        if (rows == 1) c.mask_shape = {};
        Check(c);
        c.kv_lengths = {keys, keys / 2};
        if (rows > 1) c.lengths = {rows - 1, rows / 2};
        Check(c);
        c.pre = -3;  // the band is entirely to the right of the diagonal
        Check(c);
        c.pre = 20;
        c.next = -2;
        Check(c);
      }
    }
  }
}

TEST_CASE("attention: full masks of every shape") {
  const int64_t rows = 37, keys = 200;
  for (int64_t mode : {0, 1}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{rows, keys}, {1, rows, keys}, {3, rows, keys}, {1, 1, rows, keys}, {3, 1, rows, keys}}) {
      for (double part : {0.0, 0.5, 0.995, 1.0}) {
        Check({.batch = 3,
               .heads = 4,
               .kv_heads = 2,
               .size = 16,
               .value_size = 16,
               .rows = rows,
               .keys = keys,
               .mode = mode,
               .pre = 30,
               .next = 90,
               .mask_shape = shape,
               .masked_part = part,
               .mask_dtype = mode == 0 ? DType::kUInt8 : DType::kBool});
      }
    }
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3, keys}, {1, keys}, {3, 1, keys}, {3, 1, 1, keys}, {1, 1, 1, keys}}) {
      for (double part : {0.5, 0.995, 1.0}) {
        CheckDTypes({.batch = 3,
                     .heads = 4,
                     .kv_heads = 2,
                     .size = 32,
                     .value_size = 16,
                     .rows = 1,
                     .keys = keys,
                     .mode = mode,
                     .mask_shape = shape,
                     .masked_part = part,
                     .kv_lengths = {200, 0, 77}});
      }
    }
  }
}

TEST_CASE("attention: position bias, larger than needed") {
  for (int64_t rows : {1, 45}) {
    for (int64_t batch : {1, 2}) {
      CheckDTypes({.layout = "BSH",
                   .batch = 2,
                   .heads = 6,
                   .kv_heads = 3,
                   .size = 16,
                   .value_size = 32,
                   .rows = rows,
                   .keys = 90,
                   .mode = 1,
                   .mask_shape = {rows, 90},
                   .bias_shape = {batch, 6, rows + 3, 96}});
    }
  }
}

TEST_CASE("attention: lengths per batch entry, for all, and longer lists") {
  for (int64_t rows : {1, 20}) {
    Case c{.batch = 3, .heads = 2, .size = 16, .value_size = 16, .rows = rows, .keys = 300};
    c.kv_lengths = {300, 0, 129};
    Check(c);
    c.kv_lengths = {17};
    Check(c);
    c.kv_lengths = {1, 2, 3, 4, 5};
    c.lengths = rows == 1 ? std::vector<int64_t>{99} : std::vector<int64_t>{0, 20, 7};  // ignored for a single row
    Check(c);
  }
}

TEST_CASE("attention: splitting keys between threads gives the same results") {
  CheckDTypes({.layout = "BSND", .heads = 3, .kv_heads = 1, .rows = 1, .keys = 5000});
  CheckDTypes({.heads = 16,
               .kv_heads = 1,
               .size = 16,
               .value_size = 16,
               .rows = 4,
               .keys = 3000,
               .mode = 3,
               .mask_shape = {2048, 2048},
               .kv_lengths = {2900}});
}

TEST_CASE("attention: more rows than an item has, and several blocks of keys") {
  for (int64_t mode : {0, 3})
    CheckDTypes({.layout = "BNSD",
                 .heads = 3,
                 .kv_heads = 1,
                 .size = 32,
                 .value_size = 32,
                 .rows = 700,
                 .keys = 600,
                 .mode = mode,
                 .mask_shape = mode == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{2048, 2048}});
}

TEST_CASE("attention: empty tensors") {
  Check({.batch = 0, .heads = 2, .rows = 3, .keys = 4});
  Check({.layout = "BSH", .batch = 2, .heads = 2, .rows = 0, .keys = 4});
  Check({.batch = 2, .heads = 2, .rows = 3, .keys = 0});
  Check({.batch = 2, .heads = 2, .rows = 1, .keys = 0});
}

TEST_CASE("attention: without softmax_lse_flag the second output is a single zero") {
  Case c{.heads = 2, .rows = 2, .keys = 4};
  RunOptions options = OptionsOf(c);
  options.attributes["softmax_lse_flag"] = int64_t{0};
  const std::vector<HostTensor> got = RunOp(kType, MakeInputs(c).list(), options);
  CHECK(got[1].shape() == Shape{1});
  CHECK(got[1][0] == 0.0);
  options.requested = {true, false};
  CHECK(RunOp(kType, MakeInputs(c).list(), options)[0].values() == got[0].values());
}

TEST_CASE("attention: keys beyond the actual lengths are never used") {
  for (int64_t rows : {1, 12}) {
    for (DType dtype : kDTypes) {
      Case c{.dtype = dtype, .heads = 4, .kv_heads = 2, .rows = rows, .keys = 101, .kv_lengths = {33}};
      Inputs in = MakeInputs(c);
      const std::vector<HostTensor> clean = RunOp(kType, in.list(), OptionsOf(c));
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t i = (head * 101 + 33) * 64; i < (head + 1) * 101 * 64; ++i) {
          in.key.Set(i, std::nan(""));
          in.value.Set(i, kInfinity);
        }
      }
      CHECK(RunOp(kType, in.list(), OptionsOf(c))[0].values() == clean[0].values());
    }
  }
}

TEST_CASE("attention: NaN reaches only the rows that attend to it, and -inf bias masks a key") {
  for (int64_t rows : {1, 3}) {
    Case c{.heads = 2, .kv_heads = 2, .rows = rows, .keys = 40, .bias_shape = {1, 2, rows, 40}};
    Inputs in = MakeInputs(c);
    for (int64_t j = 0; j < 40; ++j) in.bias.Set(j, -kInfinity);  // head 0, row 0: every key is masked
    std::vector<HostTensor> got = RunOp(kType, in.list(), OptionsOf(c));
    CHECK(got[0][0] == 0.0);
    CHECK(got[1][0] == -kInfinity);
    CHECK(std::isfinite(got[1][rows]));
    in.key.Set(5, std::nan(""));
    got = RunOp(kType, in.list(), OptionsOf(c));
    CHECK(std::isnan(got[0][rows * 64 - 1]));
    CHECK(std::isfinite(got[0][rows * 64]));
  }
}

// Two bfloat16 that are multiplied together are read as one float, which is not a number where one of them is infinite.
TEST_CASE("attention: an infinite value stays infinite") {
  for (DType dtype : kDTypes) {
    for (int64_t rows : {1, 40}) {
      for (int64_t key : {0, 1}) {
        const Case c{.dtype = dtype, .heads = 1, .rows = rows, .keys = 8};
        Inputs in = MakeInputs(c);
        in.value.Set(key * 64, kInfinity);
        const std::vector<HostTensor> got = RunOp(kType, in.list(), OptionsOf(c));
        for (int64_t r = 0; r < rows; ++r) {
          CHECK(got[0][r * 64] == kInfinity);
          CHECK(std::isfinite(got[0][r * 64 + 1]));
        }
      }
    }
  }
}

TEST_CASE("attention: widely spread scores neither overflow nor underflow") {
  Case c{.heads = 1, .rows = 4, .keys = 200, .scale = 1000.0};
  Check(c);
}

// Weights relative to scores of earlier keys would overflow. Scores double every 64 keys, so that they do within
// blocks.
TEST_CASE("attention: scores that grow along the keys") {
  for (int64_t mode : {0, 3}) {
    for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{10, 32}, {70, 32}, {70, 128}}) {
      for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {  // sums of float32 are too exact for such scores
        const Case c{.dtype = dtype,
                     .heads = 3,
                     .size = size,
                     .value_size = size,
                     .rows = rows,
                     .keys = 600,
                     .scale = 1 / std::sqrt(static_cast<double>(size)),
                     .mode = mode,
                     .mask_shape = mode == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{2048, 2048}};
        Inputs in = MakeInputs(c);
        for (int64_t i = 0; i < in.key.elements(); ++i) {
          in.key.Set(i, in.key[i] * static_cast<double>(1 << (i / size % c.keys / 64)));
        }
        Check(c, in);
      }
    }
  }
}

TEST_CASE("attention: absurd band widths do not overflow") {
  for (int64_t extreme : {INT64_MIN, INT64_MAX}) {
    Case c{.heads = 1, .size = 8, .value_size = 8, .rows = 3, .keys = 5, .mode = 4, .mask_shape = {2048, 2048}};
    const Inputs in = MakeInputs(c);
    RunOptions options = OptionsOf(c);
    options.attributes["pre_tokens"] = extreme;
    options.attributes["next_tokens"] = extreme;
    const HostTensor got = RunOp(kType, in.list(), options)[0];
    c.mode = 1;
    c.mask_shape = {};
    const Expected all = Naive(c, in);
    for (size_t i = 0; i < all.out.size(); ++i) {
      CHECK(got[static_cast<int64_t>(i)] == doctest::Approx(extreme > 0 ? all.out[i] : 0.0).epsilon(1e-4));
    }
  }
}

}  // namespace
}  // namespace npu::test::attention
