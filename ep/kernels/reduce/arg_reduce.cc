// ArgMax and ArgMin. NaN counts as the extreme, as in NumPy.
#include <algorithm>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

struct ArgMax {
  static constexpr const char* kName = "ArgMax";
  template <class C>
  static bool Better(C a, C b) {
    return a > b;
  }
};
struct ArgMin {
  static constexpr const char* kName = "ArgMin";
  template <class C>
  static bool Better(C a, C b) {
    return a < b;
  }
};

// Whether candidate `a`, at a later position, replaces the best so far, `b`.
template <class Op, bool last, class C>
bool Replaces(C a, C b) {
  const bool a_nan = a != a, b_nan = b != b;
  const bool tie = (a_nan && b_nan) || a == b;
  return last && tie ? true : !b_nan && (a_nan || Op::Better(a, b));
}

// Reduces `count` columns side by side along the inner dimension, which is 1 for the last axis.
template <class Op, bool last, class T>
void ArgBlock(const T* x, int64_t n, int64_t stride, int64_t* y, int64_t count) {
  ComputeType<T> best[kRowBlock];
  for (int64_t j = 0; j < count; ++j) {
    best[j] = Upcast(x[j]);
    y[j] = 0;
  }
  for (int64_t i = 1; i < n; ++i) {
    const T* row = x + i * stride;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      const auto value = Upcast(row[j]);
      const bool replaces = Replaces<Op, last>(value, best[j]);
      best[j] = replaces ? value : best[j];
      y[j] = replaces ? i : y[j];
    }
  }
}

// One dense row, viewed as rows of lanes, so that it vectorises like ArgBlock.
template <class Op, bool last, class T>
int64_t ArgRow(const T* x, int64_t n) {
  constexpr int64_t kLanes = 64;
  int64_t positions[kLanes];
  const int64_t lanes = std::min(kLanes, n);
  const int64_t whole = n / lanes;
  ArgBlock<Op, last>(x, whole, lanes, positions, lanes);
  int64_t best = positions[0] * lanes;
  const auto offer = [&](int64_t i) {
    // Lanes are not in order of position: ties are decided by the position itself.
    const bool later = Replaces<Op, true>(Upcast(x[i]), Upcast(x[best]));
    const bool better = Replaces<Op, false>(Upcast(x[i]), Upcast(x[best]));
    if (better || (later && (last ? i > best : i < best))) best = i;
  };
  for (int64_t j = 1; j < lanes; ++j) offer(positions[j] * lanes + j);
  for (int64_t i = whole * lanes; i < n; ++i) offer(i);
  return best;
}

template <class Op>
class ArgKernel : public Kernel {
 public:
  explicit ArgKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")),
        keep_dims_(info.attributes.Bool("keepdims")),
        last_(info.attributes.Bool("select_last_index")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const bool scalar = x.shape.rank() == 0;  // it has axes 0 and -1, as in torch and onnxruntime
    const int axis = NormalizeAxis(Op::kName, axis_, scalar ? 1 : x.shape.rank());
    const AxisView view = scalar ? AxisView{1, 1, 1} : ViewAround(x.shape, axis);
    Shape shape(x.shape.begin(), axis);
    if (keep_dims_ && !scalar) shape.push_back(1);
    for (int d = axis + 1; d < x.shape.rank(); ++d) shape.push_back(x.shape[d]);
    const TensorView y = ctx.Output(0, DType::kInt64, shape);
    if (y.elements() == 0) return;
    NPU_OP_CHECK(Op::kName, view.n > 0, "expected elements along axis ", axis, ", got shape ", x.shape);
    DispatchTypes(Op::kName, x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      const auto block = last_ ? &ArgBlock<Op, true, T> : &ArgBlock<Op, false, T>;
      const auto row = last_ ? &ArgRow<Op, true, T> : &ArgRow<Op, false, T>;
      ctx.Launch(Op::kName, [=, px = x.as<const T>(), py = y.as<int64_t>()] {
        if (view.inner == 1) {
          ParallelFor(view.outer, RowGrain(view.n), [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) py[i] = row(px + i * view.n, view.n);
          });
          return;
        }
        const int64_t blocks = (view.inner + kRowBlock - 1) / kRowBlock;
        const int64_t grain = RowGrain(view.n * std::min(view.inner, kRowBlock));
        ParallelFor(view.outer * blocks, grain, [=](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const int64_t outer = b / blocks, first = b % blocks * kRowBlock;
            block(px + outer * view.n * view.inner + first, view.n, view.inner, py + outer * view.inner + first,
                  std::min(kRowBlock, view.inner - first));
          }
        });
      });
    });
  }

 private:
  int64_t axis_;
  bool keep_dims_, last_;
};

template <class Op>
OpDef ArgDefinition() {
  return {
      .type = Op::kName,
      .since = 1,
      .until = 13,
      .inputs = {Input("data", kNumeric)},
      .outputs = {Output("reduced", kInt64)},
      .attributes = {IntAttribute("axis", 0), IntAttribute("keepdims", 1), IntAttribute("select_last_index", 0)},
      .make = MakeKernel<ArgKernel<Op>>,
  };
}

NPU_ONNX_KERNEL(ArgDefinition<ArgMax>());
NPU_ONNX_KERNEL(ArgDefinition<ArgMin>());

}  // namespace
}  // namespace npu
