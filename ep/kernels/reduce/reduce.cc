// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceSumSquare, ReduceL1, ReduceL2, ReduceLogSum. Floats
// are summed in float over short runs and in double across runs; integers wrap in their own type. The greatest of bools
// is whether any is true, the least whether all are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/definition.h"
#include "ep/kernels/reduce/plan.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

using ReduceTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;
using OrderTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t, int8_t, uint8_t>;

// A is the accumulator across runs, C the type of the computation.
template <class C>
using Accumulator = std::conditional_t<std::is_same_v<C, float>, double, C>;

template <class C>
C WrappingMul(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}
template <class C>
C WrappingAdd(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// An operator: its start value, an element's contribution, how two values combine, and the final step.
struct SumBase {
  using Types = ReduceTypes;
  template <class A>
  static A Start() {
    return A{0};
  }
  template <class A>
  static A Combine(A a, A b) {
    return WrappingAdd(a, b);
  }
  template <class C>
  static C Map(C x) {
    return x;
  }
  template <class A>
  static A Finish(A a, int64_t) {
    return a;
  }
};
struct ReduceSum : SumBase {
  static constexpr const char* kName = "ReduceSum";
};
struct ReduceMean : SumBase {
  static constexpr const char* kName = "ReduceMean";
  template <class A>
  static A Finish(A a, int64_t n) {
    if constexpr (std::is_integral_v<A>) {
      NPU_CHECK(n > 0, "[ReduceMean] expected elements to average, got an empty integer tensor");
      return static_cast<A>(std::is_signed_v<A> ? static_cast<int64_t>(a) / n
                                                : static_cast<uint64_t>(a) / static_cast<uint64_t>(n));
    } else {
      return a / static_cast<A>(n);
    }
  }
};
struct ReduceLogSum : SumBase {
  static constexpr const char* kName = "ReduceLogSum";
  template <class A>
  static A Finish(A a, int64_t) {
    if constexpr (std::is_integral_v<A>) {
      return SafeCast<A>(std::log(static_cast<double>(a)));
    } else {
      return std::log(a);
    }
  }
};
struct ReduceSumSquare : SumBase {
  static constexpr const char* kName = "ReduceSumSquare";
  template <class C>
  static C Map(C x) {
    return WrappingMul(x, x);
  }
};
struct ReduceL1 : SumBase {
  static constexpr const char* kName = "ReduceL1";
  template <class C>
  static C Map(C x) {
    if constexpr (std::is_unsigned_v<C>) {
      return x;
    } else if constexpr (std::is_integral_v<C>) {
      return x < 0 ? static_cast<C>(0 - static_cast<Wrapping<C>>(x)) : x;
    } else {
      return std::fabs(x);
    }
  }
};
struct ReduceL2 : SumBase {
  static constexpr const char* kName = "ReduceL2";
  template <class C>
  static C Map(C x) {
    return WrappingMul(x, x);
  }
  template <class A>
  static A Finish(A a, int64_t) {
    if constexpr (std::is_integral_v<A>) {
      return SafeCast<A>(std::sqrt(static_cast<double>(a)));
    } else {
      return std::sqrt(a);
    }
  }
};
struct ReduceProd : SumBase {
  static constexpr const char* kName = "ReduceProd";
  template <class A>
  static A Start() {
    return A{1};
  }
  template <class A>
  static A Combine(A a, A b) {
    return WrappingMul(a, b);
  }
};
struct ReduceMax : SumBase {
  static constexpr const char* kName = "ReduceMax";
  using Types = OrderTypes;
  template <class A>
  static A Start() {
    using Limits = std::numeric_limits<A>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  template <class A>
  static A Combine(A a, A b) {
    return a > b || a != a ? a : b;  // NaN wins
  }
};
struct ReduceMin : SumBase {
  static constexpr const char* kName = "ReduceMin";
  using Types = OrderTypes;
  template <class A>
  static A Start() {
    using Limits = std::numeric_limits<A>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  template <class A>
  static A Combine(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

// The same of bools, which may hold any non-zero byte for true. Void: the operator has none.
template <class Op>
struct OfBools {
  using type = void;
};
template <>
struct OfBools<ReduceMax> {
  struct type : ReduceMax {
    template <class C>
    static C Map(C x) {
      return x != 0 ? 1 : 0;
    }
  };
};
template <>
struct OfBools<ReduceMin> {
  struct type : ReduceMin {
    template <class C>
    static C Map(C x) {
      return x != 0 ? 1 : 0;
    }
    template <class A>
    static A Finish(A a, int64_t) {
      return a != 0 ? 1 : 0;  // also of no elements, which the start value stands for
    }
  };
};
template <class Op>
constexpr bool kTakesBools = !std::is_void_v<typename OfBools<Op>::type>;
template <class Op>
constexpr DTypeSet kReduced = SetOf(typename Op::Types{}) | (kTakesBools<Op> ? kBool : DTypeSet{});

// Combines a run in independent lanes, which vectorises: the compiler itself may not reorder floating-point operations.
// In a short run, lanes would take longer than its elements.
template <class Op, class C>
C ReduceRun(const C* x, int64_t n) {
  constexpr int64_t kLanes = 64 / sizeof(C) * 2, kShort = 16;
  if (n <= kShort) {
    C total = Op::template Start<C>();
    for (int64_t i = 0; i < n; ++i) total = Op::Combine(total, Op::Map(x[i]));
    return total;
  }
  C lanes[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) lanes[j] = Op::template Start<C>();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = Op::Combine(lanes[j], Op::Map(x[i + j]));
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] = Op::Combine(lanes[j], Op::Map(x[i]));
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] = Op::Combine(lanes[j], lanes[j + width]);
  }
  return lanes[0];
}

template <class T, class A>
T Store(A value) {
  if constexpr (kIsHalf<T>) {
    return FromFloat<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Calls f for blocks of a row of T, converted to ComputeType<T>.
template <class T, class F>
void ForEachComputeBlock(const T* x, int64_t n, const F& f) {
  if constexpr (std::is_same_v<ComputeType<T>, float>) {
    InBlock<T> in;
    ForEachBlock(n, [&](int64_t begin, int64_t count) { f(begin, in.Load(x + begin, count), count); });
  } else {
    f(0, x, n);
  }
}

// Combines the elements of a row, a block at a time.
template <class Op, class T>
Accumulator<ComputeType<T>> ReduceRow(const T* x, int64_t n) {
  using A = Accumulator<ComputeType<T>>;
  A total = Op::template Start<A>();
  ForEachComputeBlock(x, n, [&](int64_t, const auto* values, int64_t count) {
    total = Op::Combine(total, static_cast<A>(ReduceRun<Op>(values, count)));
  });
  return total;
}

template <class Op, class T>
void ReduceFoldedRows(const ReducePlan& plan, const T* x, T* y) {
  using A = Accumulator<ComputeType<T>>;
  const int64_t grain = RowGrain(plan.inputs_per_output);
  ParallelFor(plan.outputs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* base = x + plan.kept.Offset(i);
      A total = Op::template Start<A>();
      for (int64_t k = 0; k < plan.folded.total; ++k)
        total = Op::Combine(total, ReduceRow<Op>(base + plan.folded.Offset(k), plan.row));
      y[i] = Store<T>(Op::Finish(total, plan.inputs_per_output));
    }
  });
}

constexpr int64_t kPiece = 1 << 16;  // elements: the same pieces whatever the number of threads

// One long row, whose pieces are combined in their order.
template <class Op, class T>
void ReduceToOne(const T* x, int64_t n, T* y) {
  using A = Accumulator<ComputeType<T>>;
  std::vector<A> totals(static_cast<size_t>((n + kPiece - 1) / kPiece));
  ParallelFor(static_cast<int64_t>(totals.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      totals[static_cast<size_t>(i)] = ReduceRow<Op>(x + i * kPiece, std::min(kPiece, n - i * kPiece));
  });
  A total = Op::template Start<A>();
  for (const A& piece : totals) total = Op::Combine(total, piece);
  *y = Store<T>(Op::Finish(total, n));
}

// The row is kept: its elements are reduced side by side, a block at a time.
template <class Op, class T>
void ReduceKeptRows(const ReducePlan& plan, const T* x, T* y) {
  using C = ComputeType<T>;
  using A = Accumulator<C>;
  const int64_t blocks = (plan.row + kRowBlock - 1) / kRowBlock;
  const int64_t grain = RowGrain(plan.inputs_per_output * std::min(plan.row, kRowBlock));
  ParallelFor(plan.kept.total * blocks, grain, [&](int64_t begin, int64_t end) {
    InBlock<std::conditional_t<std::is_same_v<C, float>, T, float>> in;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b % blocks * kRowBlock;
      const int64_t count = std::min(kRowBlock, plan.row - first);
      const T* base = x + plan.kept.Offset(b / blocks) + first;
      A totals[kRowBlock];
      for (int64_t j = 0; j < count; ++j) totals[j] = Op::template Start<A>();
      for (int64_t k = 0; k < plan.folded.total; ++k) {
        const C* values;
        if constexpr (std::is_same_v<C, float>) {
          values = in.Load(base + plan.folded.Offset(k), count);
        } else {
          values = base + plan.folded.Offset(k);
        }
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) totals[j] = Op::Combine(totals[j], Op::Map(static_cast<A>(values[j])));
      }
      T* to = y + b / blocks * plan.row + first;
      for (int64_t j = 0; j < count; ++j) to[j] = Store<T>(Op::Finish(totals[j], plan.inputs_per_output));
    }
  });
}

template <class Op>
class ReduceKernel : public Kernel {
 public:
  explicit ReduceKernel(const KernelInfo& info) : arguments_(info.attributes) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    if constexpr (kTakesBools<Op>) {
      if (x.dtype == DType::kBool) return Reduce<typename OfBools<Op>::type, uint8_t>(ctx, x);
    }
    DispatchTypes(Op::kName, x.dtype, typename Op::Types{}, [&](auto type) { Reduce<Op, decltype(type)>(ctx, x); });
  }

 private:
  template <class By, class T>
  void Reduce(OpContext& ctx, const TensorView& x) const {
    const uint32_t reduced = arguments_.Reduced(Op::kName, ctx);
    const TensorView y = ctx.Output(0, x.dtype, ReducedShape(x.shape, reduced, arguments_.keep_dims()));
    const ReducePlan plan = PlanReduce(x.shape, reduced);
    if (plan.outputs == 0) return;
    ctx.Launch(Op::kName, [plan, px = x.as<const T>(), py = y.as<T>()] {
      if (plan.inputs_per_output == 0) {
        using A = Accumulator<ComputeType<T>>;
        std::fill(py, py + plan.outputs, Store<T>(By::Finish(By::template Start<A>(), 0)));
      } else if (plan.row_kept) {
        ReduceKeptRows<By>(plan, px, py);
      } else if (plan.outputs == 1 && plan.folded.total == 1 && plan.row > kPiece) {
        ReduceToOne<By>(px, plan.row, py);
      } else {
        ReduceFoldedRows<By>(plan, px, py);
      }
    });
  }

  ReduceArguments arguments_;
};

template <class Op>
OpDef AttributeAxesDef(int since, int until) {
  return AttributeAxesDef(Op::kName, since, until, kReduced<Op>, MakeKernel<ReduceKernel<Op>>);
}
template <class Op>
OpDef InputAxesDef(int since, int until) {
  return InputAxesDef(Op::kName, since, until, kReduced<Op>, MakeKernel<ReduceKernel<Op>>);
}

NPU_ONNX_KERNEL(ForShapes(AttributeAxesDef<ReduceSum>(1, 11), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(InputAxesDef<ReduceSum>(13, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(AttributeAxesDef<ReduceMean>(1, 13));
NPU_ONNX_KERNEL(InputAxesDef<ReduceMean>(18, 18));
NPU_ONNX_KERNEL(ForShapes(AttributeAxesDef<ReduceMax>(1, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(InputAxesDef<ReduceMax>(18, 20), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(AttributeAxesDef<ReduceMin>(1, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(InputAxesDef<ReduceMin>(18, 20), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(AttributeAxesDef<ReduceProd>(1, 13), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(ForShapes(InputAxesDef<ReduceProd>(18, 18), ShapeArithmetic::kFirst));
NPU_ONNX_KERNEL(AttributeAxesDef<ReduceSumSquare>(1, 13));
NPU_ONNX_KERNEL(InputAxesDef<ReduceSumSquare>(18, 18));
NPU_ONNX_KERNEL(AttributeAxesDef<ReduceLogSum>(1, 13));
NPU_ONNX_KERNEL(InputAxesDef<ReduceLogSum>(18, 18));
NPU_ONNX_KERNEL(AttributeAxesDef<ReduceL1>(1, 13));
NPU_ONNX_KERNEL(InputAxesDef<ReduceL1>(18, 18));
NPU_ONNX_KERNEL(AttributeAxesDef<ReduceL2>(1, 13));
NPU_ONNX_KERNEL(InputAxesDef<ReduceL2>(18, 18));

}  // namespace
}  // namespace npu
