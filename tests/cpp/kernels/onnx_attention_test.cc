// ONNX's Attention against a naive reference in double: caps, windows, masks, caches and lengths, in few rows and many.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ep/runtime/isa.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

struct Case {
  int64_t batch = 2, heads = 4, key_heads = 2, rows = 5, keys = 7, size = 16, value_size = 16, past = 0;
  double softcap = 0;
  int64_t causal = 0, left = -1, right = -1;
  std::vector<int64_t> lengths = {};  // of each batch entry; empty: all keys
  std::optional<Shape> mask = {};     // [Sq, T], [N, Sq, T] or [B, N, Sq, T]
  DType mask_dtype = DType::kUndefined;
};

struct Operands {
  HostTensor query, key, value, mask, past_key, past_value, lengths;
};

// Scores of up to about 8, beyond the caps of the tests.
Operands Make(const Case& c, DType dtype) {
  Operands in;
  in.query = HostTensor::Random(dtype, {c.batch, c.heads, c.rows, c.size}, 1, -3, 3);
  in.key = HostTensor::Random(dtype, {c.batch, c.key_heads, c.keys, c.size}, 2, -3, 3);
  in.value = HostTensor::Random(dtype, {c.batch, c.key_heads, c.keys, c.value_size}, 3);
  if (c.past > 0) {
    in.past_key = HostTensor::Random(dtype, {c.batch, c.key_heads, c.past, c.size}, 4, -3, 3);
    in.past_value = HostTensor::Random(dtype, {c.batch, c.key_heads, c.past, c.value_size}, 5);
  }
  if (c.mask) {
    in.mask = HostTensor::Random(c.mask_dtype == DType::kBool ? DType::kFloat32 : dtype, *c.mask, 6, -2, 2);
    if (c.mask_dtype == DType::kBool) {
      HostTensor bits(DType::kBool, *c.mask);
      for (int64_t i = 0; i < bits.elements(); ++i) bits.Set(i, in.mask[i] > -0.5);
      in.mask = bits;
    }
  }
  if (!c.lengths.empty()) in.lengths = HostTensor::Of<int64_t>({c.batch}, c.lengths);
  return in;
}

double MaskAt(const HostTensor& mask, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!mask.present()) return 0;
  const Shape& shape = mask.shape();
  const int64_t at[] = {b, h, i, j};
  int64_t index = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    const int64_t wanted = at[4 - shape.rank() + d];
    index = index * shape[d] + (shape[d] == 1 ? 0 : wanted);
  }
  if (mask.dtype() != DType::kBool) return mask[index];
  return mask[index] != 0 ? 0 : kNone;
}

std::vector<double> Naive(const Case& c, const Operands& in) {
  std::vector<double> out;
  const int64_t total = c.past + c.keys;
  const auto element = [&](const HostTensor& past, const HostTensor& added, int64_t size, int64_t b, int64_t h,
                           int64_t j, int64_t d) {
    if (j < c.past) return past[((b * c.key_heads + h) * c.past + j) * size + d];
    return added[((b * c.key_heads + h) * c.keys + j - c.past) * size + d];
  };
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t kh = h / (c.heads / c.key_heads);
      for (int64_t i = 0; i < c.rows; ++i) {
        const int64_t length = c.lengths.empty() ? total : c.lengths[static_cast<size_t>(b)];
        const int64_t place = i + (c.lengths.empty() ? c.past : length - c.rows);
        std::vector<double> scores(static_cast<size_t>(total), kNone);
        double max = kNone, sum = 0;
        for (int64_t j = 0; j < length; ++j) {
          if ((c.causal != 0 && j > place) || (c.right >= 0 && j > place + c.right) ||
              (c.left >= 0 && j < place - c.left))
            continue;
          double score = 0;
          for (int64_t d = 0; d < c.size; ++d)
            score += in.query[((b * c.heads + h) * c.rows + i) * c.size + d] *
                     element(in.past_key, in.key, c.size, b, kh, j, d);
          score /= std::sqrt(static_cast<double>(c.size));
          if (c.softcap != 0) score = c.softcap * std::tanh(score / c.softcap);
          scores[static_cast<size_t>(j)] = score + MaskAt(in.mask, b, h, i, j);
          max = std::max(max, scores[static_cast<size_t>(j)]);
        }
        std::vector<double> row(static_cast<size_t>(c.value_size), 0.0);
        for (int64_t j = 0; j < total && max != kNone; ++j) {
          const double weight = std::exp(scores[static_cast<size_t>(j)] - max);
          sum += weight;
          for (int64_t d = 0; d < c.value_size; ++d)
            row[static_cast<size_t>(d)] += weight * element(in.past_value, in.value, c.value_size, b, kh, j, d);
        }
        for (const double v : row) out.push_back(max == kNone ? 0 : v / sum);
      }
    }
  }
  return out;
}

HostTensor Run(const Case& c, const Operands& in, int version) {
  std::map<std::string, Attributes::Value> attributes = {{"is_causal", c.causal}, {"softcap", c.softcap}};
  if (version >= 25) {
    attributes["left_window_size"] = c.left;
    attributes["right_window_size"] = c.right;
  }
  return RunOp("Attention", {in.query, in.key, in.value, in.mask, in.past_key, in.past_value, in.lengths},
               {.attributes = attributes, .since_version = version})[0];
}

// Values of up to 1; 16-bit scores of up to 8 come from operands that are exact, and results are rounded once. The
// bfloat16 engine also rounds the weights.
double ToleranceOf(DType dtype) { return dtype == DType::kFloat32 ? 2e-5 : dtype == DType::kFloat16 ? 2e-3 : 1.6e-2; }

void Check(const Case& c, int version = 25) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const Operands in = Make(c, dtype);
    const HostTensor got = Run(c, in, version);
    const std::vector<double> want = Naive(c, in);
    REQUIRE(got.elements() == static_cast<int64_t>(want.size()));
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = std::fabs(got[static_cast<int64_t>(i)] - want[i]);
      if (!(error <= worst)) worst = error;
    }
    INFO(NameOf(dtype), ", ", c.rows, " rows, ", c.keys, " keys, softcap ", c.softcap, ", window ", c.left, " and ",
         c.right);
    CHECK(worst <= ToleranceOf(dtype));
  }
}

// A decode step, a short prompt and one of several blocks of keys.
const std::vector<std::pair<int64_t, int64_t>> kSizes = {{1, 300}, {5, 7}, {150, 150}};

TEST_CASE("ONNX Attention: a softcap bounds the scores before mask and bias") {
  for (const auto& [rows, keys] : kSizes) {
    for (const double cap : {0.5, 3.0, 50.0}) {
      Check({.rows = rows, .keys = keys, .softcap = cap});
      Check({.rows = rows, .keys = keys, .softcap = cap, .causal = 1});
      Check({.rows = rows, .keys = keys, .softcap = cap, .mask = Shape{rows, keys}, .mask_dtype = DType::kFloat32});
      Check({.rows = rows, .keys = keys, .softcap = cap, .mask = Shape{rows, keys}, .mask_dtype = DType::kBool});
    }
  }
}

TEST_CASE("ONNX Attention: windows on both sides of a query's place") {
  for (const auto& [rows, keys] : kSizes) {
    for (const auto& [left, right] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 0}, {0, 2}, {3, 1}, {-1, 1}, {40, -1}}) {
      Check({.rows = rows, .keys = keys, .left = left, .right = right});
      Check({.rows = rows, .keys = keys, .past = 3, .causal = 1, .left = left, .right = right});
      Check({.rows = rows, .keys = keys, .left = left, .right = right, .lengths = {keys, keys / 2}});
    }
  }
}

TEST_CASE("ONNX Attention: masks broadcast over rows, heads and batch") {
  for (const DType dtype : {DType::kBool, DType::kFloat32}) {
    for (const Shape& mask : {Shape{5, 7}, Shape{1, 7}, Shape{4, 5, 7}, Shape{1, 5, 7}, Shape{2, 1, 5, 7},
                              Shape{2, 4, 1, 7}, Shape{1, 4, 5, 7}})
      Check({.causal = 1, .mask = mask, .mask_dtype = dtype});
  }
}

TEST_CASE("ONNX Attention: rows that see no key are zero") {
  Check({.causal = 1, .lengths = {2, 0}}, 24);  // fewer keys than rows
  const Case c{.batch = 1, .rows = 1, .keys = 3};
  Operands in = Make(c, DType::kFloat32);
  in.mask = HostTensor::Of<bool>({1, 3}, {false, false, false});
  for (const double v : Run(c, in, 23).values()) CHECK(v == 0.0);
}

TEST_CASE("ONNX Attention: a past is concatenated, also if the result is not asked for") {
  const Case c{.rows = 4, .keys = 4, .value_size = 24, .past = 6, .causal = 1};
  Check(c, 23);
  const Operands in = Make(c, DType::kFloat32);
  const std::vector<HostTensor> out =
      RunOp("Attention", {in.query, in.key, in.value, {}, in.past_key, in.past_value},
            {.attributes = {{"is_causal", int64_t{1}}}, .outputs = 3, .since_version = 23});
  CHECK(out[1].shape() == Shape{2, 2, 10, 16});
  CHECK(out[2].shape() == Shape{2, 2, 10, 24});
  CHECK(out[1][5 * 16 + 3] == in.past_key[5 * 16 + 3]);
  CHECK(out[1][6 * 16 + 3] == in.key[3]);
  CHECK(out[2][(10 + 9) * 24 + 5] == in.value[(4 + 3) * 24 + 5]);
}

TEST_CASE("ONNX Attention: float32_matmul_precision=medium rounds the operands of many queries") {
  const auto rounded = [](const HostTensor& t) { return HostTensor::From(DType::kBFloat16, t.shape(), t.values()); };
  const auto as_floats = [](const HostTensor& t) { return HostTensor::From(DType::kFloat32, t.shape(), t.values()); };
  const auto run = [](const Operands& in, DType products) {
    return RunOp("Attention", {in.query, in.key, in.value, {}, in.past_key, in.past_value, in.lengths},
                 {.since_version = 25, .float32_products = products})[0];
  };
  for (const auto& [c, rounds] : std::vector<std::pair<Case, bool>>{
           {{.rows = 16, .keys = 40}, true},  // 32 rows of the two heads that share a key head
           {{.rows = 70, .keys = 70, .past = 5}, true},
           {{.rows = 40, .keys = 80, .value_size = 24, .lengths = {80, 33}}, true},
           {{.rows = 15, .keys = 40}, false}}) {
    CAPTURE(c.rows);
    const Operands exact = Make(c, DType::kFloat32);
    Operands operands = exact;
    for (HostTensor Operands::* each :
         {&Operands::query, &Operands::key, &Operands::value, &Operands::past_key, &Operands::past_value})
      if ((exact.*each).present()) operands.*each = as_floats(rounded(exact.*each));
    const HostTensor medium = run(exact, DType::kBFloat16), of_rounded = run(operands, DType::kBFloat16);
    const HostTensor highest = run(exact, DType::kFloat32);
    int64_t differ_from_rounded = 0, differ_from_exact = 0;
    double worst = 0;
    for (int64_t i = 0; i < medium.elements(); ++i) {
      differ_from_rounded += medium[i] != of_rounded[i];
      differ_from_exact += medium[i] != highest[i];
      worst = std::max(worst, std::fabs(medium[i] - highest[i]));
    }
    const bool has_pairs = Features().avx512_bf16 || Features().neon_bf16;
    CHECK((differ_from_exact > 0) == (rounds && has_pairs));
    if (rounds && has_pairs) CHECK(differ_from_rounded == 0);
    // Scores of up to 30 are off by 2^-7 of the sum of their magnitudes, and weights by as much: far more than 16 bits,
    // far less than another key's value.
    CHECK(worst < 0.25);
  }
}

TEST_CASE("ONNX Attention: heads joined in the last dimension") {
  const Case c{.rows = 6, .keys = 6};
  const Operands in = Make(c, DType::kFloat32);
  const auto joined = [](const HostTensor& t) {
    const Shape& s = t.shape();
    HostTensor out(t.dtype(), {s[0], s[2], s[1] * s[3]});
    for (int64_t i = 0; i < t.elements(); ++i) {
      const int64_t d = i % s[3], row = i / s[3] % s[2], head = i / s[3] / s[2] % s[1], b = i / s[3] / s[2] / s[1];
      out.Set(((b * s[2] + row) * s[1] + head) * s[3] + d, t[i]);
    }
    return out;
  };
  const RunOptions options{.attributes = {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}}};
  const HostTensor y = RunOp("Attention", {joined(in.query), joined(in.key), joined(in.value)}, options)[0];
  const HostTensor want = joined(HostTensor::From(DType::kFloat32, {2, 4, 6, 16}, Naive(c, in)));
  CHECK(y.shape() == want.shape());
  for (int64_t i = 0; i < y.elements(); ++i) CHECK(std::fabs(y[i] - want[i]) <= 2e-5);
}

TEST_CASE("ONNX Attention: wrong operands are refused") {
  const auto refused = [](const Case& c, const std::string& message, const auto& spoil) {
    Operands in = Make(c, DType::kFloat32);
    spoil(in);
    CHECK_THROWS_WITH_AS(Run(c, in, 25), doctest::Contains(message.c_str()), Error);
  };
  const auto floats = [](const Shape& shape) { return HostTensor::Random(DType::kFloat32, shape, 9); };
  refused({}, "expected Q [B, N, Sq, D]", [&](Operands& in) { in.key = floats({2, 2, 7, 8}); });
  refused({}, "heads of K to divide", [&](Operands& in) {
    in.key = floats({2, 3, 7, 16});
    in.value = floats({2, 3, 7, 16});
  });
  refused({}, "both past_key and past_value", [&](Operands& in) { in.past_key = floats({2, 2, 3, 16}); });
  refused({.past = 3}, "like K and V", [&](Operands& in) { in.past_value = floats({2, 2, 4, 16}); });
  refused({}, "a column for each of 7 keys", [&](Operands& in) { in.mask = floats({5, 6}); });
  refused({}, "attn_mask that broadcasts to", [&](Operands& in) { in.mask = floats({3, 7}); });
  refused({}, "attn_mask of 2 to 4 dimensions", [&](Operands& in) { in.mask = floats({7}); });
  refused({.lengths = {8, 1}}, "nonpad_kv_seqlen from 0 to the number of keys, 7, got 8", [](Operands&) {});
  refused({.lengths = {-1, 1}}, "got -1", [](Operands&) {});
  refused({.lengths = {1, 1}}, "of shape [2]", [](Operands& in) { in.lengths = HostTensor::Of<int64_t>({1}, {1}); });
  refused({.left = -2}, "left_window_size of -1", [](Operands&) {});
  refused({.softcap = -1}, "a softcap of 0 or more", [](Operands&) {});
}

}  // namespace
}  // namespace npu::test
