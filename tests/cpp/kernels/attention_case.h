// Calls of npu_fused_infer_attention_score, and a naive reference in double.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test::attention {

inline constexpr const char* kType = "npu::NPUFusedInferAttentionScore";
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

inline std::string InputForm(const std::string& layout) { return layout.substr(0, layout.find('_')); }
inline std::string OutputForm(const std::string& layout) {
  const size_t bar = layout.find('_');
  return bar == std::string::npos ? layout : layout.substr(bar + 1);
}

inline Shape ShapeOf(const std::string& form, int64_t b, int64_t n, int64_t s, int64_t d) {
  if (form == "BSH") return {b, s, n * d};
  if (form == "BSND") return {b, s, n, d};
  if (form == "NBSD") return {n, b, s, d};
  return {b, n, s, d};
}

inline int64_t IndexOf(const std::string& form, const Case& c, int64_t heads, int64_t rows, int64_t size, int64_t b,
                       int64_t n, int64_t s, int64_t d) {
  if (form == "BSH" || form == "BSND") return ((b * rows + s) * heads + n) * size + d;
  if (form == "NBSD") return ((n * c.batch + b) * rows + s) * size + d;
  return ((b * heads + n) * rows + s) * size + d;
}

struct Inputs {
  HostTensor query, key, value, bias, mask, lengths, kv_lengths;
  std::vector<HostTensor> list() const { return {query, key, value, bias, mask, lengths, kv_lengths}; }
};

inline Inputs MakeInputs(const Case& c, uint64_t seed = 1) {
  const std::string form = InputForm(c.layout);
  Inputs in;
  in.query = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.heads, c.rows, c.size), seed, -2, 2);
  in.key = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.kv_heads, c.keys, c.size), seed + 1, -2, 2);
  in.value = HostTensor::Random(c.dtype, ShapeOf(form, c.batch, c.kv_heads, c.keys, c.value_size), seed + 2, -1, 1);
  if (!c.bias_shape.empty()) in.bias = HostTensor::Random(c.dtype, Shape(c.bias_shape), seed + 3, -2, 2);
  if (!c.mask_shape.empty()) {
    in.mask = HostTensor(c.mask_dtype, Shape(c.mask_shape));
  }
  if (!c.mask_shape.empty() && c.mask_shape.back() != 2048) {  // the elements of a compressed mask are ignored
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

inline RunOptions OptionsOf(const Case& c) {
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

inline Expected Naive(const Case& c, const Inputs& in) {
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
inline double ToleranceOf(DType dtype) {
  return dtype == DType::kFloat32 ? 5e-6 : dtype == DType::kFloat16 ? 6e-4 : 6e-3;
}

inline void Check(const Case& c, const Inputs& in) {
  INFO(NameOf(c.dtype), " ", c.layout, " batch ", c.batch, " heads ", c.heads, "/", c.kv_heads, " size ", c.size, "/",
       c.value_size, " rows ", c.rows, " keys ", c.keys, " mode ", c.mode);
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

inline void Check(const Case& c) { Check(c, MakeInputs(c)); }

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

inline void CheckDTypes(Case c) {
  for (DType dtype : kDTypes) {
    c.dtype = dtype;
    Check(c);
  }
}

inline std::string ErrorOf(const Case& c, const Inputs& in) {
  try {
    RunOp(kType, in.list(), OptionsOf(c));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
inline std::string ErrorOf(const Case& c) { return ErrorOf(c, MakeInputs(c)); }

inline bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.rfind("[npu_fused_infer_attention_score] ", 0) == 0 && text.find(part) != std::string::npos;
}

}  // namespace npu::test::attention
