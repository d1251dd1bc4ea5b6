// The gated delta rule against its formula in double, with several threads and with blocks of rows that are not whole:
// what the sanitizers watch. tests/ops has the other dtypes and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

struct Sizes {
  int64_t key_heads, heads, width, value_width;
};
const std::vector<Sizes> kSizes = {{2, 4, 64, 64}, {1, 3, 100, 37}, {2, 2, 7, 5}};
const std::vector<int64_t> kLengths = {1, 30, 0, 9};
constexpr int64_t kTokens = 40, kSequences = 4;
constexpr double kScale = 0.5;

struct Call {
  // Keys of a length of at most 1, without which the states grow.
  explicit Call(const Sizes& s)
      : sizes(s),
        query(HostTensor::Random(DType::kFloat32, {kTokens, s.key_heads, s.width}, 1)),
        key(HostTensor::Random(DType::kFloat32, {kTokens, s.key_heads, s.width}, 2, -1 / std::sqrt(s.width),
                               1 / std::sqrt(s.width))),
        value(HostTensor::Random(DType::kFloat32, {kTokens, s.heads, s.value_width}, 3)),
        state(HostTensor::Random(DType::kFloat32, {kSequences, s.heads, s.value_width, s.width}, 4)),
        beta(HostTensor::Random(DType::kFloat32, {kTokens, s.heads}, 5, 0, 1)),
        g(HostTensor::Random(DType::kFloat32, {kTokens, s.heads}, 6, -1, 0)),
        gk(HostTensor::Random(DType::kFloat32, {kTokens, s.heads, s.width}, 7, -1, 0)) {}

  // The results; `states` becomes the last state of each sequence.
  std::vector<double> Formula(std::vector<double>* states, bool of_elements) const {
    std::vector<double> out(static_cast<size_t>(kTokens * sizes.heads * sizes.value_width));
    int64_t begin = 0;
    for (int64_t b = 0; b < kSequences; begin += kLengths[static_cast<size_t>(b++)])
      for (int64_t head = 0; head < sizes.heads; ++head)
        for (int64_t row = 0; row < sizes.value_width; ++row) {
          double* s = states->data() + ((b * sizes.heads + head) * sizes.value_width + row) * sizes.width;
          for (int64_t t = begin; t < begin + kLengths[static_cast<size_t>(b)]; ++t) {
            const int64_t i = t * sizes.heads + head, at = i * sizes.value_width + row;
            out[static_cast<size_t>(at)] = Step(s, t, head, value[at], of_elements);
          }
        }
    return out;
  }

  Sizes sizes;
  HostTensor query, key, value, state, beta, g, gk;

 private:
  // Changes a row of a state by a token; the row's result.
  double Step(double* s, int64_t t, int64_t head, double v, bool of_elements) const {
    const int64_t i = t * sizes.heads + head,
                  shared = (t * sizes.key_heads + head / (sizes.heads / sizes.key_heads)) * sizes.width;
    double seen = 0, result = 0;
    for (int64_t k = 0; k < sizes.width; ++k) {
      s[k] *= std::exp(g[i] + (of_elements ? gk[i * sizes.width + k] : 0.0));
      seen += s[k] * key[shared + k];
    }
    for (int64_t k = 0; k < sizes.width; ++k) {
      s[k] += beta[i] * (v - seen) * key[shared + k];
      result += s[k] * query[shared + k];
    }
    return kScale * result;
  }
};

void CheckNear(const HostTensor& found, const std::vector<double>& expected) {
  REQUIRE(found.elements() == static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < found.elements(); ++i) {
    const double right = expected[static_cast<size_t>(i)];
    // Sums of 100 products in float32.
    if (!(std::fabs(found[i] - right) <= 2e-5 * (1 + std::fabs(right)))) FAIL_CHECK(i, ": ", found[i], " != ", right);
  }
}

TEST_CASE("the gated delta rule of sequences matches its formula") {
  for (const Sizes& sizes : kSizes) {
    CAPTURE(sizes.width);
    const Call call(sizes);
    std::vector<double> states = call.state.values();
    const std::vector<double> results = call.Formula(&states, false);
    const std::vector<HostTensor> out = RunOp("npu::NPUChunkGatedDeltaRule",
                                              {call.query, call.key, call.value, call.beta, call.state,
                                               HostTensor::Of<int64_t>({kSequences}, kLengths), call.g},
                                              {.attributes = {{"scale", kScale}}, .outputs = 2});
    CheckNear(out[0], results);
    CheckNear(out[1], states);
  }
}

TEST_CASE("the gated delta rule of blocks matches its formula, with gates of elements and in place") {
  std::vector<int32_t> blocks;  // each sequence has one
  for (int32_t b = 0; b < kSequences; ++b)
    blocks.insert(blocks.end(), static_cast<size_t>(kLengths[static_cast<size_t>(b)]), b);
  for (const Sizes& sizes : kSizes) {
    CAPTURE(sizes.width);
    const Call call(sizes);
    std::vector<double> states = call.state.values();
    const std::vector<double> results = call.Formula(&states, true);
    const std::vector<HostTensor> out =
        RunOp("npu::NPURecurrentGatedDeltaRule",
              {call.query, call.key, call.value, call.state, call.beta, HostTensor::Of<int64_t>({kSequences}, kLengths),
               HostTensor::Of<int32_t>({kTokens}, blocks), HostTensor::Of<int32_t>({kSequences}, {1, 30, 7, 1}), call.g,
               call.gk},
              {.attributes = {{"scale", kScale}}, .outputs = 2, .alias = {{1, 3}}});
    CHECK(out[1].data<void>() == call.state.data<void>());
    CheckNear(out[0], results);
    CheckNear(out[1], states);
  }
}

}  // namespace
}  // namespace npu::test
