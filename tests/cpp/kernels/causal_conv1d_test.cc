// The causal convolution of sequences against its formula in double, with several threads, with kernels that are longer
// than the blocks of tokens that tasks take, and in place: what the sanitizers watch. tests/ops has the other dtypes
// and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

struct Sizes {
  int64_t channels, taps;
};
const std::vector<Sizes> kSizes = {{600, 4}, {37, 3}, {600, 70}, {5, 1}};
const std::vector<int64_t> kStarts = {0, 1, 201, 201, 210};
const std::vector<int64_t> kRows = {4, 0, 1, 2};  // of the states that each sequence has
constexpr int64_t kTokens = 210, kStates = 5;

void CheckNear(const HostTensor& found, const std::vector<double>& expected) {
  REQUIRE(found.elements() == static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < found.elements(); ++i) {
    const double right = expected[static_cast<size_t>(i)];
    // Sums of 70 products in float32.
    if (!(std::fabs(found[i] - right) <= 2e-5 * (1 + std::fabs(right)))) FAIL_CHECK(i, ": ", found[i], " != ", right);
  }
}

TEST_CASE("the causal convolution of sequences matches its formula and updates their states") {
  for (const Sizes& sizes : kSizes) {
    CAPTURE(sizes.taps);
    const int64_t channels = sizes.channels, history = sizes.taps - 1;
    const HostTensor x = HostTensor::Random(DType::kFloat32, {kTokens, channels}, 1),
                     weight = HostTensor::Random(DType::kFloat32, {sizes.taps, channels}, 2),
                     states = HostTensor::Random(DType::kFloat32, {kStates, history, channels}, 3);
    std::vector<double> results(static_cast<size_t>(kTokens * channels)), after = states.values();
    for (size_t b = 0; b + 1 < kStarts.size(); ++b) {
      const int64_t begin = kStarts[b], count = kStarts[b + 1] - begin;
      for (int64_t c = 0; c < channels; ++c) {
        const auto entry = [&](int64_t i) { return (kRows[b] * history + i) * channels + c; };
        const auto before = [&](int64_t i) {  // entry i of the state followed by the tokens
          return i < history ? states[entry(i)] : x[(begin + i - history) * channels + c];
        };
        for (int64_t t = 0; t < count; ++t)
          for (int64_t k = 0; k < sizes.taps; ++k)
            results[static_cast<size_t>((begin + t) * channels + c)] += weight[k * channels + c] * before(t + k);
        for (int64_t i = 0; i < history; ++i) after[static_cast<size_t>(entry(i))] = before(count + i);
      }
    }
    const std::vector<HostTensor> out =
        RunOp("npu::NPUFusedCausalConv1d",
              {x, weight, states, HostTensor::Of<int64_t>({static_cast<int64_t>(kStarts.size())}, kStarts),
               HostTensor::Of<int64_t>({static_cast<int64_t>(kRows.size())}, kRows)},
              {.attributes = {{"activation", std::string("None")},
                              {"conv_mode", std::string("default")},
                              {"run_mode", int64_t{0}},
                              {"residual_connection", int64_t{0}},
                              {"pad_slot_id", int64_t{-1}},
                              {"block_size", int64_t{128}}},
               .outputs = 2,
               .alias = {{1, 2}}});
    CHECK(out[1].data<void>() == states.data<void>());
    CheckNear(out[0], results);
    CheckNear(out[1], after);
  }
}

}  // namespace
}  // namespace npu::test
