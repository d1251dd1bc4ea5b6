// Multinomial (ai.onnx 7 to 22): draws classes with replacement, given their logarithmic probabilities up to a summand.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/distributions.h"
#include "ep/kernels/random/node_generator.h"

namespace npu {
namespace {

constexpr const char* kOp = "Multinomial";

// Sums of e^(x - max), up to each class.
template <class T>
std::vector<double> Cumulated(const T* logits, int64_t classes) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < classes; ++i) max = std::max(max, static_cast<double>(Upcast(logits[i])));
  std::vector<double> sums(static_cast<size_t>(classes));
  for (int64_t i = 0; i < classes; ++i) {
    sum += std::exp(static_cast<double>(Upcast(logits[i])) - max);
    sums[static_cast<size_t>(i)] = sum;
  }
  NPU_OP_CHECK(kOp, std::isfinite(sum) && sum > 0, "expected logarithmic probabilities with a finite largest one, ",
               "got a row without");
  return sums;
}

class MultinomialKernel final : public Kernel {
 public:
  explicit MultinomialKernel(const KernelInfo& info)
      : samples_(info.attributes.Int("sample_size")),
        dtype_(static_cast<DType>(info.attributes.Int("dtype"))),
        generator_(info.attributes) {
    NPU_OP_CHECK(kOp, samples_ > 0, "expected a sample_size of 1 or more, got ", samples_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() == 2 && x.shape[1] > 0, "expected an input [batch, classes], got shape ", x.shape);
    const int64_t batch = x.shape[0], classes = x.shape[1];
    const TensorView y = ctx.Output(0, dtype_, {batch, samples_});
    if (batch == 0) return;
    const DrawnSeed seed = generator_.Draw(ctx.stream());
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      DispatchTypes(kOp, dtype_, Types<int32_t, int64_t>{}, [&](auto index) {
        using T = decltype(type);
        using Index = decltype(index);
        ctx.Launch(kOp, [=, samples = samples_, from = x.as<const T>(), to = y.as<Index>()] {
          const Philox words{seed.Now(), 0};
          ParallelFor(batch, 1, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              const std::vector<double> sums = Cumulated(from + row * classes, classes);
              for (int64_t i = 0; i < samples; ++i) {
                uint32_t block[4];
                words.Fill(static_cast<uint64_t>(row * samples + i), 1, block);
                const double at = Unit<double>(uint64_t{block[0]} << 32 | block[1]) * sums.back();
                const auto found = std::upper_bound(sums.begin(), sums.end() - 1, at);
                to[row * samples + i] = static_cast<Index>(found - sums.begin());
              }
            }
          });
        });
      });
    });
  }

 private:
  int64_t samples_;
  DType dtype_;
  NodeGenerator generator_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 7,
    .until = 22,
    .inputs = {Input("input", kAllFloats)},
    .outputs = {Output("output", kIndices)},
    .attributes = {IntAttribute("dtype", static_cast<int64_t>(DType::kInt32)), IntAttribute("sample_size", 1),
                   FloatAttribute("seed")},
    .make = MakeKernel<MultinomialKernel>,
});

}  // namespace
}  // namespace npu
