// The kernels behind torch's ctc_loss: against a sum over all paths, and refused arguments.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr int64_t kTimes = 4, kBatch = 2, kLabels = 3;

struct CtcOperands {
  HostTensor log_probs = HostTensor::Random(DType::kFloat64, {kTimes, kBatch, kLabels}, 1, -3, 0);
  HostTensor targets = HostTensor::Of<int64_t>({kBatch, 2}, {1, 1, 2, 7});  // the last is past its sequence's end
  HostTensor input_lengths = HostTensor::Of<int64_t>({kBatch}, {4, 3});
  HostTensor target_lengths = HostTensor::Of<int64_t>({kBatch}, {2, 1});
  std::vector<HostTensor> list() const { return {log_probs, targets, input_lengths, target_lengths}; }
};

// The labels of a path: repetitions are merged, then blanks removed.
std::vector<int64_t> Collapsed(const std::vector<int64_t>& path) {
  std::vector<int64_t> labels;
  for (size_t t = 0; t < path.size(); ++t)
    if (path[t] != 0 && (t == 0 || path[t] != path[t - 1])) labels.push_back(path[t]);
  return labels;
}

double LossOf(const std::vector<double>& log_probs, int64_t b, int64_t times, const std::vector<int64_t>& target) {
  double likelihood = 0;
  const auto paths = static_cast<int64_t>(std::pow(kLabels, times));
  for (int64_t number = 0; number < paths; ++number) {
    std::vector<int64_t> path;
    double log_prob = 0;
    for (int64_t t = 0, rest = number; t < times; ++t, rest /= kLabels) {
      path.push_back(rest % kLabels);
      log_prob += log_probs[static_cast<size_t>((t * kBatch + b) * kLabels + path.back())];
    }
    if (Collapsed(path) == target) likelihood += std::exp(log_prob);
  }
  return -std::log(likelihood);
}

TEST_CASE("ctc: losses equal the sum over all paths") {
  const CtcOperands in;
  const std::vector<double> probs = in.log_probs.values();
  const HostTensor losses = RunOp("npu.aten::CtcLoss", in.list(), {.outputs = 2})[0];
  CHECK(losses[0] == doctest::Approx(LossOf(probs, 0, 4, {1, 1})).epsilon(1e-12));
  CHECK(losses[1] == doctest::Approx(LossOf(probs, 1, 3, {2})).epsilon(1e-12));
}

TEST_CASE("ctc: bad labels, lengths and shapes are refused") {
  const auto refused = [](auto&& change, const std::string& message, int64_t blank = 0) {
    CtcOperands in;
    change(in);
    std::string error;
    try {
      RunOp("npu.aten::CtcLoss", in.list(), {.attributes = {{"blank", blank}}, .outputs = 2});
    } catch (const Error& e) {
      error = e.what();
    }
    CAPTURE(error);
    CHECK(error.find("[ctc_loss] expected " + message) != std::string::npos);
  };
  for (const int64_t bad : {kLabels, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    refused([&](CtcOperands& in) { in.targets = HostTensor::Of<int64_t>({kBatch, 2}, {1, bad, 2, 2}); },
            "targets in [0, 3), got " + std::to_string(bad));
    refused([](CtcOperands&) {}, "a blank in [0, 3), got " + std::to_string(bad), bad);
  }
  for (const int64_t bad : {int64_t{5}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    refused([&](CtcOperands& in) { in.input_lengths = HostTensor::Of<int64_t>({kBatch}, {1, bad}); },
            "input_lengths in [0, 4], got " + std::to_string(bad));
    refused([&](CtcOperands& in) { in.target_lengths = HostTensor::Of<int64_t>({kBatch}, {1, bad}); },
            "target_lengths in [0, 2], got " + std::to_string(bad));
    refused(
        [&](CtcOperands& in) {
          in.targets = HostTensor::Of<int64_t>({4}, {1, 1, 2, 2});
          in.target_lengths = HostTensor::Of<int64_t>({kBatch}, {3, bad});
        },
        "target_lengths in [0, 1], got " + std::to_string(bad));
  }
  refused([](CtcOperands& in) { in.input_lengths = HostTensor::Of<int64_t>({1}, {1}); }, "2 lengths, got 1");
  refused([](CtcOperands& in) { in.targets = HostTensor::Of<int64_t>({3, 2}, {1, 1, 1, 1, 1, 1}); },
          "targets of int64 and of shape [N, S]");
  refused([](CtcOperands& in) { in.log_probs = HostTensor::Random(DType::kFloat64, {kTimes, kLabels}, 1); },
          "log_probs of shape [T, N, C]");
}

TEST_CASE("ctc: the gradient past a sequence is zero, and mismatched operands are refused") {
  const CtcOperands in;
  const std::vector<HostTensor> forward = RunOp("npu.aten::CtcLoss", in.list(), {.outputs = 2});
  const HostTensor ones = HostTensor::From(DType::kFloat64, {kBatch}, {1, 1});
  const auto gradient = [&](const HostTensor& grad, const HostTensor& alpha) {
    return RunOp("npu.aten::CtcLossGrad",
                 {grad, in.log_probs, in.targets, in.input_lengths, in.target_lengths, alpha})[0];
  };
  // Values past the end of the second sequence have no influence.
  const HostTensor slopes = gradient(ones, forward[1]);
  for (int64_t c = 0; c < kLabels; ++c) CHECK(slopes[((kTimes - 1) * kBatch + 1) * kLabels + c] == 0);
  CHECK_THROWS_WITH_AS(gradient(ones, HostTensor::Random(DType::kFloat64, {kBatch, kTimes, 3}, 1)),
                       doctest::Contains("expected log_alpha float64 of shape [2, 4, 5]"), Error);
  CHECK_THROWS_WITH_AS(gradient(ones, HostTensor::Random(DType::kFloat32, {kBatch, kTimes, 5}, 1)),
                       doctest::Contains("expected log_alpha float64"), Error);
  CHECK_THROWS_WITH_AS(gradient(HostTensor::From(DType::kFloat64, {1}, {1}), forward[1]),
                       doctest::Contains("expected the losses' gradients"), Error);
}

}  // namespace
}  // namespace npu::test
