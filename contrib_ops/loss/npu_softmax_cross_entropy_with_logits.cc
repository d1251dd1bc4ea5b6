// npu_softmax_cross_entropy_with_logits(self, labels) -> y. The semantics are in
// npu_softmax_cross_entropy_with_logits.py.
#include "contrib_ops/loss/npu_softmax_cross_entropy_with_logits.h"

#include <vector>

#include "ep/kernels/convert.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

using In = nodes::NPUSoftmaxCrossEntropyWithLogits::In;
using Out = nodes::NPUSoftmaxCrossEntropyWithLogits::Out;

constexpr const char* kOp = "npu_softmax_cross_entropy_with_logits";

template <class T>
void Losses(const T* logits, const T* labels, int64_t columns, T* y, int64_t begin, int64_t end) {
  std::vector<float> row(static_cast<size_t>(columns)), weights(static_cast<size_t>(columns));
  for (int64_t i = begin; i < end; ++i) {
    ToFloat(logits + i * columns, row.data(), columns);
    ToFloat(labels + i * columns, weights.data(), columns);
    LogSoftmaxRow(row.data(), columns);
    double sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += double{weights[k]} * row[k];
    y[i] = FromFloat<T>(static_cast<float>(-sum));
  }
}

class SoftmaxCrossEntropyKernel final : public Kernel {
 public:
  explicit SoftmaxCrossEntropyKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self), labels = ctx.Input(In::labels);
    NPU_OP_CHECK(kOp, x && labels && x.shape.rank() == 2 && labels.shape == x.shape && labels.dtype == x.dtype,
                 "expected self [B, K] and labels like it, got ", NameOf(x.dtype), " ", x.shape, " and ",
                 NameOf(labels.dtype), " ", labels.shape);
    const int64_t rows = x.shape[0], columns = x.shape[1];
    const TensorView y = ctx.Output(Out::y, x.dtype, {rows});
    if (rows == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [=, logits = x.as<const T>(), weights = labels.as<const T>(), to = y.as<T>()] {
        const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(columns, 1));
        ParallelFor(rows, grain, [=](int64_t begin, int64_t end) { Losses(logits, weights, columns, to, begin, end); });
      });
    });
  }
};

NPU_KERNEL(NPUSoftmaxCrossEntropyWithLogits, SoftmaxCrossEntropyKernel);

}  // namespace
}  // namespace npu
