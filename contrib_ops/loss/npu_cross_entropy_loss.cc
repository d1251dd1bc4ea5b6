// npu_cross_entropy_loss(input, target, weight?; reduction, ignore_index, label_smoothing, lse_square_scale_for_zloss,
// return_zloss) -> loss, log_prob, zloss, lse_for_zloss. The semantics are in npu_cross_entropy_loss.py.
#include "contrib_ops/loss/npu_cross_entropy_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/loss/reduction.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/vector_math.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUCrossEntropyLoss::In;
using Out = nodes::NPUCrossEntropyLoss::Out;

constexpr const char* kOp = "npu_cross_entropy_loss";

// log(sum(exp(x))) of a row; NaN, as in softmax, if the row contains NaN or has no finite maximum.
template <class T>
double LogSumExp(const T* x, int64_t n) {
  InBlock<T> in;
  float largest = -std::numeric_limits<float>::infinity();
  bool nan = false;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* v = in.Load(x + begin, count);
    float block = largest;
    int unordered = 0;
#pragma omp simd reduction(max : block) reduction(| : unordered)
    for (int64_t i = 0; i < count; ++i) {
      block = v[i] > block ? v[i] : block;
      unordered |= v[i] != v[i];
    }
    largest = block;
    nan |= unordered != 0;
  });
  if (nan || std::isinf(largest)) return std::numeric_limits<double>::quiet_NaN();
  double total = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* v = in.Load(x + begin, count);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += math::Exp(v[i] - largest);
    total += sum;
  });
  return largest + std::log(total);
}

struct RowLoss {
  double nll, smooth, weight;  // 0 for an ignored row
};

template <class T>
struct Task {
  const T* input;
  const int64_t* target;
  const float* weight;
  T *loss, *log_prob, *zloss, *lse_for_zloss;
  RowLoss* rows;
  int64_t n, classes, ignore_index;
  double smoothing;
  Reduction reduction;

  void Run() const {
    class_of().CheckFirst(n);
    ParallelFor(n, RowGrain(classes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) rows[i] = Row(i);
    });
    // The z-loss is not defined upstream: its outputs are zero.
    const int64_t losses = reduction == Reduction::kNone ? n : 1;
    if (zloss) std::fill_n(zloss, losses, FromFloat<T>(0.0f));
    if (lse_for_zloss) std::fill_n(lse_for_zloss, n, FromFloat<T>(0.0f));
    if (loss) Reduce();
  }

 private:
  CheckedNumbers<int64_t> class_of() const { return {kOp, "target", target, 0, classes}; }

  double Mix(const RowLoss& row) const {
    // Without classes every sum is 0: dividing by 1 avoids 0 / 0.
    return (1.0 - smoothing) * row.nll + smoothing * row.smooth / static_cast<double>(std::max<int64_t>(classes, 1));
  }

  RowLoss Row(int64_t i) const {
    const T* x = input + i * classes;
    const double lse = LogSumExp(x, classes);
    const int64_t c = class_of()[i];
    if (log_prob) WriteLogProb(x, lse, log_prob + i * classes);
    if (c == ignore_index) return {0.0, 0.0, 0.0};
    const double w = weight ? weight[c] : 1.0;
    return {(lse - ToFloat(x[c])) * w, smoothing > 0.0 ? Smooth(x, lse) : 0.0, w};
  }

  void WriteLogProb(const T* x, double lse, T* y) const {
    InBlock<T> in;
    OutBlock<T> out;
    // Subtracted in two parts, so that the low digits of a large log-sum-exp are not lost.
    const float high = static_cast<float>(lse), low = static_cast<float>(lse - high);
    ForEachBlock(classes, [&](int64_t begin, int64_t count) {
      const float* v = in.Load(x + begin, count);
      float* r = out.Values(y + begin);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) r[j] = v[j] - high - low;
      out.Commit(y + begin, count);
    });
  }

  // -sum(log_prob * weight) over the classes.
  double Smooth(const T* x, double lse) const {
    double total = 0.0;
    for (int64_t c = 0; c < classes; ++c) total += (lse - ToFloat(x[c])) * (weight ? weight[c] : 1.0f);
    return total;
  }

  void Reduce() const {
    if (reduction == Reduction::kNone) {
      for (int64_t i = 0; i < n; ++i) loss[i] = FromFloat<T>(static_cast<float>(Mix(rows[i])));
      return;
    }
    RowLoss sum{0.0, 0.0, 0.0};
    for (int64_t i = 0; i < n; ++i)
      sum = {sum.nll + rows[i].nll, sum.smooth + rows[i].smooth, sum.weight + rows[i].weight};
    const double divisor = reduction == Reduction::kMean ? sum.weight : 1.0;
    loss[0] = FromFloat<T>(static_cast<float>(Mix(sum) / divisor));
  }
};

class CrossEntropyLossKernel final : public Kernel {
 public:
  explicit CrossEntropyLossKernel(const KernelInfo& info)
      : reduction_(ReadReduction(kOp, info.attributes)),
        ignore_index_(info.attributes.Int("ignore_index")),
        smoothing_(info.attributes.Float("label_smoothing")) {
    NPU_OP_CHECK(kOp, smoothing_ >= 0.0 && smoothing_ < 1.0, "expected label_smoothing in [0, 1), got ", smoothing_);
    NPU_OP_CHECK(kOp,
                 info.attributes.Float("lse_square_scale_for_zloss") == 0.0 && !info.attributes.Bool("return_zloss"),
                 "expected lse_square_scale_for_zloss 0 and return_zloss False: the z-loss is not defined");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView input = ctx.Input(In::input), target = ctx.Input(In::target), weight = ctx.Input(In::weight);
    NPU_OP_CHECK(kOp, input && target, "expected the tensors input and target");
    NPU_OP_CHECK(kOp, input.shape.rank() == 2, "expected input of shape [N, C], got ", input.shape);
    const int64_t n = input.shape[0], classes = input.shape[1];
    NPU_OP_CHECK(kOp, target.shape == Shape{n} && target.dtype == DType::kInt64, "expected target of shape ", Shape{n},
                 " and int64, got ", target.shape, " and ", NameOf(target.dtype));
    NPU_OP_CHECK(kOp, !weight || (weight.shape == Shape{classes} && weight.dtype == DType::kFloat32),
                 "expected weight of shape ", Shape{classes}, " and float32, got ", weight.shape, " and ",
                 NameOf(weight.dtype));
    NPU_OP_CHECK(kOp, ignore_index_ < classes || classes == 0, "expected ignore_index below the ", classes,
                 " classes, got ", ignore_index_);
    const Shape losses{reduction_ == Reduction::kNone ? n : 1};
    const TensorView loss = ctx.Output(Out::loss, input.dtype, losses);
    const TensorView log_prob = ctx.Output(Out::log_prob, input.dtype, input.shape);
    const TensorView zloss = ctx.Output(Out::zloss, input.dtype, losses);
    const TensorView lse = ctx.Output(Out::lse_for_zloss, input.dtype, Shape{n});
    auto* rows = static_cast<RowLoss*>(ctx.Workspace(static_cast<size_t>(std::max<int64_t>(n, 1)) * sizeof(RowLoss)));
    DispatchFloats(kOp, input.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Task<T> task{input.as<T>(),
                         target.as<int64_t>(),
                         weight.as<float>(),
                         loss.as<T>(),
                         log_prob.as<T>(),
                         zloss.as<T>(),
                         lse.as<T>(),
                         rows,
                         n,
                         classes,
                         ignore_index_,
                         smoothing_,
                         reduction_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  Reduction reduction_;
  int64_t ignore_index_;
  double smoothing_;
};

NPU_KERNEL(NPUCrossEntropyLoss, CrossEntropyLossKernel);

}  // namespace
}  // namespace npu
