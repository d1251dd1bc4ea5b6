// The kernels behind torch's scaled_dot_product_attention: gradients against finite differences of a naive forward
// pass in double, and refused arguments.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr const char* kForward = "npu.aten::ScaledDotProductAttention";
constexpr const char* kGradient = "npu.aten::ScaledDotProductAttentionGrad";
constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kRows = 5, kKeys = 7, kSize = 3, kValueSize = 6;
constexpr double kScale = 0.4;

using Numbers = std::vector<double>;

// Sum of the weighted outputs; the causal mask is aligned to the top left.
double Loss(const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& bias, const Numbers& weight,
            bool causal) {
  double loss = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t key_head = b * kKeyHeads + h / (kHeads / kKeyHeads);
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t row = (b * kHeads + h) * kRows + i, seen = causal ? std::min(i + 1, kKeys) : kKeys;
        double sum = 0, result = 0;
        for (int64_t j = 0; j < seen; ++j) {
          double score = 0, along = 0;
          for (int64_t d = 0; d < kSize; ++d) {
            score +=
                q[static_cast<size_t>(row * kSize + d)] * k[static_cast<size_t>((key_head * kKeys + j) * kSize + d)];
          }
          for (int64_t d = 0; d < kValueSize; ++d) {
            along += weight[static_cast<size_t>(row * kValueSize + d)] *
                     v[static_cast<size_t>((key_head * kKeys + j) * kValueSize + d)];
          }
          const double e = std::exp(score * kScale + bias[static_cast<size_t>(b * kKeys + j)]);
          sum += e;
          result += e * along;
        }
        if (sum > 0) loss += result / sum;
      }
    }
  }
  return loss;
}

HostTensor Random(const Shape& shape, uint64_t seed) { return HostTensor::Random(DType::kFloat32, shape, seed, -1, 1); }

struct Operands {
  HostTensor query = Random({kBatch, kHeads, kRows, kSize}, 1), key = Random({kBatch, kKeyHeads, kKeys, kSize}, 2),
             value = Random({kBatch, kKeyHeads, kKeys, kValueSize}, 3), bias = Random({kBatch, 1, 1, kKeys}, 4), seed;
  std::vector<HostTensor> list() const { return {query, key, value, bias, seed}; }
};

RunOptions Options(size_t outputs, bool causal = false, double keep_prob = 1.0) {
  return {.attributes = {{"scale", kScale}, {"causal", int64_t{causal}}, {"keep_prob", keep_prob}}, .outputs = outputs};
}

TEST_CASE("scaled dot product: gradients match the forward pass") {
  Operands in;
  in.bias.Set(3, -std::numeric_limits<double>::infinity());
  const HostTensor weight = Random({kBatch, kHeads, kRows, kValueSize}, 5);
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    const std::vector<HostTensor> forward = RunOp(kForward, in.list(), Options(2, causal));
    std::vector<HostTensor> inputs = in.list();
    inputs.insert(inputs.end(), {forward[0], forward[1], weight});
    const std::vector<HostTensor> gradients = RunOp(kGradient, inputs, Options(3, causal));
    Numbers values[3] = {in.query.values(), in.key.values(), in.value.values()};
    const Numbers bias = in.bias.values(), weights = weight.values();
    double total = 0;
    for (int64_t i = 0; i < weight.elements(); ++i) total += forward[0][i] * weight[i];
    const auto loss = [&] { return Loss(values[0], values[1], values[2], bias, weights, causal); };
    CHECK(std::fabs(total - loss()) < 1e-5);
    for (int which = 0; which < 3; ++which) {
      CAPTURE(which);
      double worst = 0;
      for (size_t i = 0; i < values[which].size(); ++i) {
        constexpr double kStep = 1e-4;
        double& x = values[which][i];
        const double middle = x;
        x = middle + kStep;
        double slope = loss();
        x = middle - kStep;
        slope = (slope - loss()) / (2 * kStep);
        x = middle;
        const double error = std::fabs(gradients[static_cast<size_t>(which)][static_cast<int64_t>(i)] - slope);
        if (!(error <= worst)) worst = error;
      }
      CHECK(worst < 1e-5);  // sums of some dozens of products near 1, rounded to 2^-24 each
    }
  }
}

std::string ErrorOf(const char* type, const std::vector<HostTensor>& inputs, const RunOptions& options) {
  try {
    RunOp(type, inputs, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("scaled dot product: bad operands are refused") {
  const auto refused = [](auto&& change, const std::string& message, double keep_prob = 1.0) {
    Operands in;
    change(in);
    const std::string error = ErrorOf(kForward, in.list(), Options(2, false, keep_prob));
    CAPTURE(error);
    CHECK(error.find("[scaled_dot_product_attention] expected " + message) != std::string::npos);
  };
  refused([](Operands& in) { in.query = HostTensor(); }, "the tensors query, key and value");
  refused([](Operands& in) { in.query = Random({kBatch, kHeads, kSize}, 1); }, "query [B, N, Sq, D]");
  refused([](Operands& in) { in.key = Random({kBatch, kKeyHeads, kKeys, kSize + 1}, 1); }, "query [B, N, Sq, D]");
  refused([](Operands& in) { in.key = Random({1, kKeyHeads, kKeys, kSize}, 1); }, "query [B, N, Sq, D]");
  refused([](Operands& in) { in.value = Random({kBatch, kKeyHeads, kKeys - 1, 4}, 1); }, "query [B, N, Sq, D]");
  refused([](Operands& in) { in.value = Random({kBatch, kKeyHeads, kKeys, 769}, 1); }, "a head size from 1 to 768");
  refused([](Operands& in) { in.value = Random({kBatch, kKeyHeads, kKeys, 0}, 1); }, "a head size from 1 to 768");
  refused([](Operands& in) { in.query = Random({kBatch, 3, kRows, kSize}, 1); }, "the heads of key to divide");
  refused(
      [](Operands& in) {
        in.key = Random({kBatch, 0, kKeys, kSize}, 1);
        in.value = Random({kBatch, 0, kKeys, kSize}, 1);
      },
      "the heads of key to divide");
  refused([](Operands& in) { in.key = HostTensor::Random(DType::kFloat16, in.key.shape(), 1); },
          "query, key and value");
  for (const Shape& shape : {Shape{kKeys}, Shape{1, 1, kRows, 1}, Shape{1, 1, kRows + 1, kKeys}, Shape{3, 1, 1, kKeys},
                             Shape{1, 2, 1, kKeys}}) {
    refused([&](Operands& in) { in.bias = Random(shape, 1); }, "bias of shape [1 or 2, 1 or 4, 1 or 5, 7]");
  }
  refused([](Operands&) {}, "keep_prob in [0, 1]", 1.5);
  refused([](Operands&) {}, "keep_prob in [0, 1]", std::nan(""));
  const std::string no_seed = ErrorOf(kForward, Operands().list(), Options(2, false, 0.5));
  CHECK(no_seed.find("seed") != std::string::npos);
}

TEST_CASE("scaled dot product: backward requires the outputs of forward") {
  const Operands in;
  const std::vector<HostTensor> forward = RunOp(kForward, in.list(), Options(2));
  const auto error = [&](const HostTensor& output, const HostTensor& lse, const HostTensor& gradient) {
    std::vector<HostTensor> inputs = in.list();
    inputs.insert(inputs.end(), {output, lse, gradient});
    return ErrorOf(kGradient, inputs, Options(3));
  };
  CHECK(error(forward[0], forward[1], forward[0]).empty());
  CHECK(error(HostTensor(), forward[1], forward[0]).find("expected output float32") != std::string::npos);
  CHECK(error(forward[0], forward[0], forward[0]).find("expected logsumexp float32") != std::string::npos);
  CHECK(error(forward[0], forward[1], in.query).find("expected the output's gradient") != std::string::npos);
}

}  // namespace
}  // namespace npu::test
