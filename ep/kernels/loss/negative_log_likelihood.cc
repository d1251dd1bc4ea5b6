// NegativeLogLikelihoodLoss (ai.onnx 12 to 22) and SoftmaxCrossEntropyLoss (12 to 13): of each position, the negative
// log-probability of its class times the weight of that class; the latter takes the log-softmax of its input first.
// Computed in float32, doubles in double; sums in double.
#include <optional>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/loss/reduction.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"

namespace npu {
namespace {

struct PositionLoss {
  double loss, weight;
};

// x is [batch, classes, inner]; one loss for each of the batch * inner positions.
template <class T>
struct Losses {
  using C = ComputeType<T>;
  const char* op;
  const T* x;
  TensorView classes_of;  // int32 or int64, of each position
  const T* weight;        // of each class; null: 1
  T* losses;
  T* log_probabilities;  // null: not asked for
  PositionLoss* parts;   // of each position
  int64_t batch, classes, inner;
  std::optional<int64_t> ignored;
  bool from_scores;  // x is the input of a log-softmax
  Reduction reduction;

  void Run() const {
    const int64_t positions = batch * inner;
    ParallelFor(positions, RowGrain(from_scores ? classes : 1), [this](int64_t begin, int64_t end) {
      std::vector<C> row(from_scores ? static_cast<size_t>(classes) : 0);
      for (int64_t i = begin; i < end; ++i) parts[i] = At(i, row.data());
    });
    if (reduction == Reduction::kNone) {
      for (int64_t i = 0; i < positions; ++i) losses[i] = Rounded<T>(static_cast<C>(parts[i].loss));
      return;
    }
    PositionLoss sum{0, 0};
    for (int64_t i = 0; i < positions; ++i) sum = {sum.loss + parts[i].loss, sum.weight + parts[i].weight};
    const double divisor = reduction == Reduction::kMean ? sum.weight : 1;
    losses[0] = Rounded<T>(static_cast<C>(sum.loss / divisor));
  }

 private:
  PositionLoss At(int64_t i, C* row) const {
    const int64_t first = i / inner * classes * inner + i % inner, target = ReadOnce(classes_of, i);
    if (from_scores) {
      for (int64_t c = 0; c < classes; ++c) row[c] = Upcast(x[first + c * inner]);
      LogSoftmaxRow(row, classes);
      for (int64_t c = 0; log_probabilities != nullptr && c < classes; ++c)
        log_probabilities[first + c * inner] = Rounded<T>(row[c]);
    }
    if (ignored && target == *ignored) return {0, 0};
    NPU_OP_CHECK(op, target >= 0 && target < classes, "expected classes from 0 to ", classes - 1, ", got ", target);
    const double log_probability = from_scores ? row[target] : Upcast(x[first + target * inner]);
    const double by = weight == nullptr ? 1.0 : static_cast<double>(Upcast(weight[target]));
    return {-log_probability * by, by};
  }
};

template <bool from_scores>
class LossKernel final : public Kernel {
 public:
  static constexpr const char* kOp = from_scores ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss";

  explicit LossKernel(const KernelInfo& info) : reduction_(ReadReduction(kOp, info.attributes)) {
    if (info.attributes.Has("ignore_index")) ignored_ = info.attributes.Int("ignore_index");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), target = ctx.Input(1), weight = ctx.Input(2);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, rank >= 2, "expected an input [N, C, ...], got shape ", x.shape);
    Shape positions{x.shape[0]};
    for (int d = 2; d < rank; ++d) positions.push_back(x.shape[d]);
    NPU_OP_CHECK(kOp, target.shape == positions, "expected a class for each position, shape ", positions, ", got ",
                 target.shape);
    NPU_OP_CHECK(kOp, !weight || (weight.shape == Shape{x.shape[1]} && weight.dtype == x.dtype),
                 "expected a weight for each class, ", NameOf(x.dtype), " ", Shape{x.shape[1]}, ", got ",
                 NameOf(weight.dtype), " ", weight.shape);
    const TensorView losses = ctx.Output(0, x.dtype, reduction_ == Reduction::kNone ? positions : Shape{});
    const TensorView log_probabilities = from_scores ? ctx.Output(1, x.dtype, x.shape) : TensorView{};
    const auto count = static_cast<size_t>(positions.Elements());
    if (losses.elements() == 0) return;
    auto* parts = static_cast<PositionLoss*>(ctx.Workspace(std::max<size_t>(count, 1) * sizeof(PositionLoss)));
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const Losses<T> task{
          kOp,       x.as<const T>(), target,     weight.as<const T>(),      losses.as<T>(), log_probabilities.as<T>(),
          parts,     x.shape[0],      x.shape[1], x.shape.Elements(2, rank), ignored_,       from_scores,
          reduction_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  Reduction reduction_;
  std::optional<int64_t> ignored_;
};

std::vector<AttrDef> LossAttributes() { return {StringAttribute("reduction", "mean"), IntAttribute("ignore_index")}; }

NPU_ONNX_KERNEL({
    .type = LossKernel<false>::kOp,
    .since = 12,
    .until = 22,
    .inputs = {Input("input", kAllFloats), Input("target", kIndices), OptionalInput("weight", kAllFloats)},
    .outputs = {Output("loss", kAllFloats)},
    .attributes = LossAttributes(),
    .make = MakeKernel<LossKernel<false>>,
});
NPU_ONNX_KERNEL({
    .type = LossKernel<true>::kOp,
    .since = 12,
    .until = 13,
    .inputs = {Input("scores", kAllFloats), Input("labels", kIndices), OptionalInput("weights", kAllFloats)},
    .outputs = {Output("output", kAllFloats), OptionalOutput("log_prob", kAllFloats)},
    .attributes = LossAttributes(),
    .make = MakeKernel<LossKernel<true>>,
});

}  // namespace
}  // namespace npu
