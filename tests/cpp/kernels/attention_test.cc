// npu_fused_infer_attention_score against a plain loop in double, and what it must refuse.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr const char* kType = "npu::NPUFusedInferAttentionScore";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  DType dtype = DType::kFloat32;
  std::string layout = "BNSD";
  int64_t batch = 1, heads = 1, kv_heads = 1, size = 64, value_size = 64, rows = 1, keys = 1;
  double scale = 0.125;
  int64_t mode = 0, pre = INT32_MAX, next = INT32_MAX;
  std::vector<int64_t> mask_shape = {};  // empty: no mask
  double masked_part = 0.3;
  DType mask_dtype = DType::kBool;
  std::vector<int64_t> bias_shape = {};
  std::vector<int64_t> lengths = {}, kv_lengths = {};
};

std::string InputForm(const std::string& layout) { return layout.substr(0, layout.find('_')); }
std::string OutputForm(const std::string& layout) {
  const size_t bar = layout.find('_');
  return bar == std::string::npos ? layout : layout.substr(bar + 1);
}

Shape ShapeOf(const std::string& form, int64_t b, int64_t n, int64_t s, int64_t d) {
  if (form == "BSH") return {b, s, n * d};
  if (form == "BSND") return {b, s, n, d};
  if (form == "NBSD") return {n, b, s, d};
  return {b, n, s, d};
}

int64_t IndexOf(const std::string& form, const Case& c, int64_t heads, int64_t rows, int64_t size, int64_t b, int64_t n,
                int64_t s, int64_t d) {
  if (form == "BSH" || form == "BSND") return ((b * rows + s) * heads + n) * size + d;
  if (form == "NBSD") return ((n * c.batch + b) * rows + s) * size + d;
  return ((b * heads + n) * rows + s) * size + d;
}

struct Inputs {
  HostTensor query, key, value, bias, mask, lengths, kv_lengths;
  std::vector<HostTensor> list() const { return {query, key, value, bias, mask, lengths, kv_lengths}; }
};

Inputs MakeInputs(const Case& c, uint64_t seed = 1) {
  const std::string form = InputForm(c.layout);
  Inputs in;
  in.query = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.heads, c.rows, c.size), seed, -2, 2);
  in.key = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.kv_heads, c.keys, c.size), seed + 1, -2, 2);
  in.value = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.kv_heads, c.keys, c.value_size), seed + 2, -1, 1);
  if (!c.bias_shape.empty()) in.bias = HostTensor::Random(c.dtype, Shape(c.bias_shape), seed + 3, -2, 2);
  if (!c.mask_shape.empty()) {
    in.mask = HostTensor(c.mask_dtype, Shape(c.mask_shape));
  }
  if (!c.mask_shape.empty() && c.mask_shape.back() != 2048) {  // the elements of a compressed mask mean nothing
    const HostTensor random = HostTensor::Random(DType::kFloat32, in.mask.shape(), seed + 4, 0, 1);
    for (int64_t i = 0; i < random.elements(); ++i) in.mask.Set(i, random[i] < c.masked_part ? 1 : 0);
  }
  const auto list = [](const std::vector<int64_t>& v) {
    return v.empty() ? HostTensor() : HostTensor::Of(Shape{static_cast<int64_t>(v.size())}, v);
  };
  in.lengths = list(c.lengths);
  in.kv_lengths = list(c.kv_lengths);
  return in;
}

RunOptions OptionsOf(const Case& c) {
  return {.attributes = {{"num_heads", c.heads},
                         {"num_key_value_heads", c.kv_heads == c.heads ? int64_t{0} : c.kv_heads},
                         {"scale", c.scale},
                         {"input_layout", c.layout},
                         {"sparse_mode", c.mode},
                         {"pre_tokens", c.pre},
                         {"next_tokens", c.next},
                         {"softmax_lse_flag", int64_t{1}}},
          .outputs = 2};
}

struct Expected {
  std::vector<double> out, lse;
};

Expected Naive(const Case& c, const Inputs& in) {
  const std::string form = InputForm(c.layout), out_form = OutputForm(c.layout);
  const bool decode = c.rows == 1;
  Expected e;
  e.out.resize(static_cast<size_t>(c.batch * c.heads * c.rows * c.value_size));
  e.lse.resize(static_cast<size_t>(c.batch * c.heads * c.rows));
  const int64_t rank = static_cast<int64_t>(c.mask_shape.size());
  const bool compressed = c.mode >= 2 && rank >= 2 && c.mask_shape.back() == 2048;
  const std::vector<double> query = in.query.values(), key = in.key.values(), value = in.value.values();
  const std::vector<double> mask = compressed || rank == 0 ? std::vector<double>() : in.mask.values();
  for (int64_t b = 0; b < c.batch; ++b) {
    const auto length = [&](const std::vector<int64_t>& list, int64_t limit) {
      return list.empty() ? limit : list[list.size() == 1 ? 0 : static_cast<size_t>(b)];
    };
    const int64_t rows = decode ? 1 : length(c.lengths, c.rows), keys = length(c.kv_lengths, c.keys);
    const int64_t delta = keys - rows;
    for (int64_t n = 0; n < c.heads; ++n) {
      const int64_t kv = n / (c.heads / c.kv_heads);
      for (int64_t i = 0; i < c.rows; ++i) {
        std::vector<double> score(static_cast<size_t>(c.keys), -kInfinity);
        double max = -kInfinity;
        for (int64_t j = 0; j < keys && i < rows; ++j) {
          bool masked = false;
          if (!decode && c.mode == 0 && rank > 0) masked = j < i - c.pre || j > i + c.next;
          if (!decode && c.mode == 2) masked = j > i;
          if (!decode && c.mode == 3) masked = j > i + delta;
          if (!decode && c.mode == 4) masked = j < i + delta - c.pre || j > i + delta + c.next;
          if (rank > 0 && !compressed) {
            const bool batched = c.mask_shape[0] == c.batch && (rank > 2 || decode);
            masked = masked || mask[static_cast<size_t>(((batched ? b : 0) * c.rows + i) * c.keys + j)] != 0;
          }
          if (masked) continue;
          const double* q = &query[static_cast<size_t>(IndexOf(form, c, c.heads, c.rows, c.size, b, n, i, 0))];
          const double* k = &key[static_cast<size_t>(IndexOf(form, c, c.kv_heads, c.keys, c.size, b, kv, j, 0))];
          double dot = 0;
          for (int64_t d = 0; d < c.size; ++d) dot += q[d] * k[d];
          double& s = score[static_cast<size_t>(j)];
          s = dot * c.scale;
          if (!c.bias_shape.empty()) {
            const int64_t bb = c.bias_shape[0] == 1 ? 0 : b;
            s += in.bias[((bb * c.heads + n) * c.bias_shape[2] + i) * c.bias_shape[3] + j];
          }
          max = std::max(max, s);
        }
        double sum = 0;
        std::vector<double> out(static_cast<size_t>(c.value_size));
        for (int64_t j = 0; j < keys; ++j) {
          if (score[static_cast<size_t>(j)] == -kInfinity) continue;
          const double w = std::exp(score[static_cast<size_t>(j)] - max);
          sum += w;
          const double* v =
              &value[static_cast<size_t>(IndexOf(form, c, c.kv_heads, c.keys, c.value_size, b, kv, j, 0))];
          for (int64_t d = 0; d < c.value_size; ++d) out[static_cast<size_t>(d)] += w * v[d];
        }
        for (int64_t d = 0; d < c.value_size; ++d) {
          e.out[static_cast<size_t>(IndexOf(out_form, c, c.heads, c.rows, c.value_size, b, n, i, d))] =
              sum > 0 ? out[static_cast<size_t>(d)] / sum : 0;
        }
        e.lse[static_cast<size_t>((b * c.heads + n) * c.rows + i)] = sum > 0 ? max + std::log(sum) : -kInfinity;
      }
    }
  }
  return e;
}

// Float32 sums differ from double in the last bits. The 16-bit types round the result once (2^-11, 2^-8 relative to
// values below 1); bfloat16 also rounds each weight (2^-9) on machines that multiply bfloat16 pairs.
double ToleranceOf(DType dtype) { return dtype == DType::kFloat32 ? 5e-6 : dtype == DType::kFloat16 ? 6e-4 : 6e-3; }

void Check(const Case& c) {
  INFO(NameOf(c.dtype), " ", c.layout, " batch ", c.batch, " heads ", c.heads, "/", c.kv_heads, " size ", c.size, "/",
       c.value_size, " rows ", c.rows, " keys ", c.keys, " mode ", c.mode);
  const Inputs in = MakeInputs(c);
  const std::vector<HostTensor> got = RunOp(kType, in.list(), OptionsOf(c));
  const Expected want = Naive(c, in);
  REQUIRE(got[0].shape() == ShapeOf(OutputForm(c.layout), c.batch, c.heads, c.rows, c.value_size));
  REQUIRE(got[0].dtype() == c.dtype);
  REQUIRE(got[1].shape() == Shape{c.batch, c.heads, c.rows, 1});
  REQUIRE(got[1].dtype() == DType::kFloat32);
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < want.out.size(); ++i) {
    const double error = std::fabs(got[0][static_cast<int64_t>(i)] - want.out[i]);
    if (!(error <= worst)) worst = error;
  }
  for (size_t i = 0; i < want.lse.size(); ++i) {
    const double g = got[1][static_cast<int64_t>(i)], w = want.lse[i];
    const double error = g == w ? 0 : std::fabs(g - w) / (1 + std::fabs(w));
    if (!(error <= worst_lse)) worst_lse = error;
  }
  CHECK(worst <= ToleranceOf(c.dtype));
  CHECK(worst_lse <= 1e-5);
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void CheckDTypes(Case c) {
  for (DType dtype : kDTypes) {
    c.dtype = dtype;
    Check(c);
  }
}

TEST_CASE("attention: layouts of input and output") {
  for (const char* layout :
       {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"}) {
    CheckDTypes(
        {.layout = layout, .batch = 2, .heads = 6, .kv_heads = 2, .size = 32, .value_size = 48, .rows = 9, .keys = 21});
    CheckDTypes(
        {.layout = layout, .batch = 2, .heads = 6, .kv_heads = 3, .size = 32, .value_size = 16, .rows = 1, .keys = 70});
  }
}

TEST_CASE("attention: head sizes that are no multiple of a vector, and large ones") {
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
        c.pre = -3;  // the band lies wholly to the right of the diagonal
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

TEST_CASE("attention: keys split between threads give the same rows") {
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

TEST_CASE("attention: empty tensors") {
  Check({.batch = 0, .heads = 2, .rows = 3, .keys = 4});
  Check({.layout = "BSH", .batch = 2, .heads = 2, .rows = 0, .keys = 4});
  Check({.batch = 2, .heads = 2, .rows = 3, .keys = 0});
  Check({.batch = 2, .heads = 2, .rows = 1, .keys = 0});
}

TEST_CASE("attention: without softmax_lse_flag the second result is one zero") {
  Case c{.heads = 2, .rows = 2, .keys = 4};
  RunOptions options = OptionsOf(c);
  options.attributes["softmax_lse_flag"] = int64_t{0};
  const std::vector<HostTensor> got = RunOp(kType, MakeInputs(c).list(), options);
  CHECK(got[1].shape() == Shape{1});
  CHECK(got[1][0] == 0.0);
  options.requested = {true, false};
  CHECK(RunOp(kType, MakeInputs(c).list(), options)[0].values() == got[0].values());
}

TEST_CASE("attention: what lies beyond the lengths is never used") {
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

TEST_CASE("attention: NaN reaches the rows that see it, and -inf bias hides a key") {
  for (int64_t rows : {1, 3}) {
    Case c{.heads = 2, .kv_heads = 2, .rows = rows, .keys = 40, .bias_shape = {1, 2, rows, 40}};
    Inputs in = MakeInputs(c);
    for (int64_t j = 0; j < 40; ++j) in.bias.Set(j, -kInfinity);  // head 0, row 0: no key is left
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

TEST_CASE("attention: scores far apart neither overflow nor vanish") {
  Case c{.heads = 1, .rows = 4, .keys = 200, .scale = 1000.0};
  Check(c);
}

std::string ErrorOf(const Case& c, const Inputs& in) {
  try {
    RunOp(kType, in.list(), OptionsOf(c));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
std::string ErrorOf(const Case& c) { return ErrorOf(c, MakeInputs(c)); }

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.rfind("[npu_fused_infer_attention_score] ", 0) == 0 && text.find(part) != std::string::npos;
}

TEST_CASE("attention: attributes that are refused") {
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

TEST_CASE("attention: shapes and types that are refused") {
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

TEST_CASE("attention: lengths that are refused") {
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

TEST_CASE("attention: a pattern needs the compressed mask") {
  for (int64_t mode : {2, 3, 4}) {
    CHECK(Has(ErrorOf({.rows = 3, .keys = 4, .mode = mode}), "got none"));
    CHECK(Has(ErrorOf({.rows = 3, .keys = 4, .mode = mode, .mask_shape = {3, 4}}), "got [3, 4]"));
  }
}

TEST_CASE("attention: what is not implemented is refused before it runs") {
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
  CHECK(WhyUnsupported(*def, node).find("query int8") != std::string::npos);
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

// The packed, paged and rope forms are held to the plain ones, which the tests above hold to the loop in double.

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

// 32-bit sums may be ordered differently where keys are shared out differently.
void CheckSame(const HostTensor& got, int64_t begin, const HostTensor& want) {
  double worst = 0;
  for (int64_t i = 0; i < want.elements(); ++i) {
    const double error = got[begin + i] == want[i] ? 0 : std::fabs(got[begin + i] - want[i]);
    if (!(error <= worst)) worst = error;
  }
  CHECK(worst <= (got.dtype() == DType::kFloat32 ? 2e-6 : got.dtype() == DType::kFloat16 ? 1e-3 : 8e-3));
}

TEST_CASE("attention: packed sequences are as each by itself") {
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
        // A batch of one single query ignores patterns, a packed one does not: two rows, the second unused.
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

TEST_CASE("attention: head-major packed layouts hold the same numbers") {
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

// The first lengths[b] rows of [batch, capacity, heads, size], dealt out to the pages of a table; the rest is NaN.
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

// Every page but the first, in a scrambled order. Entries behind a sequence's length are never looked at.
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

TEST_CASE("attention: paged caches, and rope parts apart") {
  const int64_t capacity = 200;
  const std::vector<int64_t> lengths = {capacity, 77};
  for (DType dtype : kDTypes) {
    for (int64_t page_rows : {1, 16, 40, 128}) {
      for (int64_t rows : {2, 30}) {  // with rope apart a single query keeps its pattern, without it does not
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

TEST_CASE("attention: a page outside the cache stops the kernel, and only that") {
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

TEST_CASE("attention: packed, paged and rope arguments that are refused") {
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
  CHECK(Has(error(packed, masked), "expected atten_mask with sparse_mode 2, 3 or 4 only"));
  masked[4] = {};
  masked[3] = random({1, 2, 6, 9});
  CHECK(Has(error(packed, masked), "expected no pse_shift for input_layout TND"));

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
}  // namespace npu::test
