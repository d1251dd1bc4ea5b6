// npu_fused_infer_attention_score against a plain loop in double, and what it must refuse.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
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
  std::vector<int64_t> mask_shape;  // empty: no mask
  double masked_part = 0.3;
  DType mask_dtype = DType::kBool;
  std::vector<int64_t> bias_shape;
  std::vector<int64_t> lengths, kv_lengths;
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
  CHECK(Has(ErrorOf({.layout = "TND"}), "input_layout TND is not implemented"));
  CHECK(Has(ErrorOf({.heads = 6, .kv_heads = 4}), "to divide num_heads 6, got 4"));
  CHECK(Has(ErrorOf({.heads = 0, .kv_heads = 0}), "expected num_heads >= 1, got 0"));
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
  CHECK(
      Has(with([&](Inputs& in) { in.bias = random({1, 4, 3, 8}, DType::kFloat16); }), "expected pse_shift of query's"));
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
  CHECK(Has(ErrorOf(bsh, in), "expected the tensor query"));
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

TEST_CASE("attention: arguments that are not implemented are named") {
  const Case c{.heads = 1, .rows = 2, .keys = 2};
  std::vector<HostTensor> inputs = MakeInputs(c).list();
  inputs.resize(27);
  inputs[18] = HostTensor::Of<int32_t>(Shape{1, 1}, {0});
  std::string message;
  try {
    RunOp(kType, inputs, OptionsOf(c));
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(Has(message, "the argument block_table is not implemented"));

  const OpDef* def = OpRegistry::Instance().Find("npu", "NPUFusedInferAttentionScore", 1);
  REQUIRE(def != nullptr);
  NodeView node;
  node.op_type = def->type;
  node.inputs.assign(27, DType::kUndefined);
  node.inputs[0] = node.inputs[1] = node.inputs[2] = DType::kFloat32;
  node.output_count = 2;
  CHECK(WhyUnsupported(*def, node) == "");
  node.inputs[18] = DType::kInt32;
  CHECK(WhyUnsupported(*def, node).find("block_table") != std::string::npos);
  node.inputs[18] = DType::kUndefined;
  node.attributes.Set("input_layout", std::string("TND"));
  CHECK(WhyUnsupported(*def, node).find("TND") != std::string::npos);
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
}  // namespace npu::test
