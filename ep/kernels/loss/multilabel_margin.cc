// torch's multi-label margin loss of each row and its gradient: by how much less than 1 the score of each class in
// `target` exceeds that of each class not in it, over the number of classes. The classes of a row end at the first -1.
// A row takes time in proportion to its targets times its classes, and memory in proportion to its classes.
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "multilabel_margin_loss";

// One row's classes, read and checked once. Reused for the rows of a thread.
class Classes {
 public:
  explicit Classes(int64_t count) : wanted_(static_cast<size_t>(count)) {}

  void Read(const int64_t* targets) {
    const auto count = static_cast<int64_t>(wanted_.size());
    const CheckedNumbers checked(kOp, "targets", targets, -1, count);
    std::fill(wanted_.begin(), wanted_.end(), false);
    list_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t target = checked[i];
      if (target < 0) break;
      list_.push_back(target);
      wanted_[static_cast<size_t>(target)] = true;
    }
  }
  const std::vector<int64_t>& list() const { return list_; }
  bool wanted(int64_t i) const { return wanted_[static_cast<size_t>(i)]; }

  // f(target, other, by how much less than 1 the former's score is larger), for the pairs where that is positive.
  template <class T, class F>
  void ForEachExcess(const T* scores, const F& f) const {
    using C = ComputeType<T>;
    for (const int64_t target : list_) {
      const C own = Upcast(scores[target]);
      for (int64_t i = 0; i < static_cast<int64_t>(wanted_.size()); ++i) {
        const C excess = 1 - own + Upcast(scores[i]);
        if (!wanted(i) && excess > 0) f(target, i, excess);
      }
    }
  }

 private:
  std::vector<bool> wanted_;
  std::vector<int64_t> list_;
};

void Check(const TensorView& scores, const TensorView& target) {
  NPU_CHECK(
      scores && scores.shape.rank() == 2 && target && target.dtype == DType::kInt64 && target.shape == scores.shape,
      "[", kOp, "] expected scores [rows, classes] and int64 targets of the same shape, got ", scores.shape, " and ",
      NameOf(target.dtype), " ", target.shape);
}

template <class F>
void ForEachRow(int64_t rows, int64_t count, const F& f) {
  ParallelFor(rows, RowGrain(count * count), [&](int64_t begin, int64_t end) {
    Classes classes(count);
    for (int64_t row = begin; row < end; ++row) f(row, classes);
  });
}

class MultilabelMarginLossKernel : public Kernel {
 public:
  explicit MultilabelMarginLossKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView scores = ctx.Input(0), target = ctx.Input(1);
    Check(scores, target);
    const int64_t rows = scores.shape[0], count = scores.shape[1];
    const TensorView losses = ctx.Output(0, ComputeDType(scores.dtype), {rows});
    const TensorView is_target = ctx.Output(1, scores.dtype, scores.shape);
    NPU_CHECK(losses && is_target, "[", kOp, "] expected losses and is_target to be asked for together");
    if (scores.elements() == 0) return;
    DispatchTypes(kOp, scores.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      ctx.Launch(kOp, [rows, count, x = scores.as<const T>(), targets = target.as<const int64_t>(), to = losses.as<C>(),
                       marks = is_target.as<T>()] {
        ForEachRow(rows, count, [=](int64_t row, Classes& classes) {
          classes.Read(targets + row * count);
          double sum = 0;
          classes.ForEachExcess(x + row * count, [&](int64_t, int64_t, C excess) { sum += excess; });
          to[row] = static_cast<C>(sum / static_cast<double>(count));
          for (int64_t i = 0; i < count; ++i) marks[row * count + i] = Rounded<T>(static_cast<C>(classes.wanted(i)));
        });
      });
    });
  }
};

// grad [rows] is of the rows' losses.
class MultilabelMarginGradKernel : public Kernel {
 public:
  explicit MultilabelMarginGradKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView grad = ctx.Input(0), scores = ctx.Input(1), target = ctx.Input(2);
    Check(scores, target);
    const int64_t rows = scores.shape[0], count = scores.shape[1];
    NPU_CHECK(grad && grad.dtype == scores.dtype && grad.shape == Shape({rows}), "[", kOp,
              "] expected a gradient for each of ", rows, " rows, got ", grad.shape);
    const TensorView out = ctx.Output(0, scores.dtype, scores.shape);
    if (out.elements() == 0) return;
    DispatchTypes(kOp, scores.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      ctx.Launch(kOp, [rows, count, g = grad.as<const T>(), x = scores.as<const T>(),
                       targets = target.as<const int64_t>(), to = out.as<T>()] {
        ForEachRow(rows, count, [=](int64_t row, Classes& classes) {
          classes.Read(targets + row * count);
          std::vector<int64_t> slopes(static_cast<size_t>(count));
          classes.ForEachExcess(x + row * count, [&](int64_t own, int64_t other, C) {
            --slopes[static_cast<size_t>(own)];
            ++slopes[static_cast<size_t>(other)];
          });
          const C scale = Upcast(g[row]) / static_cast<C>(count);
          for (int64_t i = 0; i < count; ++i)
            to[row * count + i] = Rounded<T>(static_cast<C>(slopes[static_cast<size_t>(i)]) * scale);
        });
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "MultilabelMarginLoss",
    .inputs = {Input("scores", kAllFloats), Input("target", kInt64)},
    .outputs = {Output("losses", {DType::kFloat32, DType::kFloat64}), Output("is_target", kAllFloats)},
    .make = MakeKernel<MultilabelMarginLossKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "MultilabelMarginGrad",
    .inputs = {Input("grad", kAllFloats), Input("scores", kAllFloats), Input("target", kInt64)},
    .outputs = {Output("out", kAllFloats)},
    .make = MakeKernel<MultilabelMarginGradKernel>,
});

}  // namespace
}  // namespace npu
