// Min, Max, Sum and Mean over any number of broadcast inputs. A block of the output is accumulated over all
// inputs before it is stored, so that 16-bit floats round once.
#include <array>
#include <memory>
#include <vector>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

struct Fold {  // what is left of `count` inputs
  template <class C>
  static C Finish(C folded, size_t /*count*/) {
    return folded;
  }
};
struct Min : Fold {
  static constexpr const char* kName = "Min";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    return a < b || a != a ? a : b;  // NaN wins
  }
};
struct Max : Fold {
  static constexpr const char* kName = "Max";
  using Types = NumericTypes;
  template <class C>
  static C Apply(C a, C b) {
    return a > b || a != a ? a : b;
  }
};
struct Sum : Fold {
  static constexpr const char* kName = "Sum";
  using Types = FloatTypes;
  template <class C>
  static C Apply(C a, C b) {
    return a + b;
  }
};

struct Mean : Sum {
  static constexpr const char* kName = "Mean";
  template <class C>
  static C Finish(C folded, size_t count) {
    return folded / static_cast<C>(count);
  }
};

constexpr int64_t kBlock = 512;

struct Operand {
  const void* data;
  BroadcastPlan<1> plan;
};

// One row piece of one input into the accumulator.
template <class Op, class T, bool first>
void Accumulate(const T* x, int64_t step, ComputeType<T>* sum, int64_t n) {
  using C = ComputeType<T>;
  C values[kBlock];
  const C* in = values;
  if constexpr (!kIsHalf<T>) {
    in = x;
  } else if (step != 0) {
    ToFloat(x, values, n);
  } else {
    values[0] = ToFloat(*x);
  }
  if (step == 0) {
    const C s = *in;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] = first ? s : Op::Apply(sum[i], s);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] = first ? in[i] : Op::Apply(sum[i], in[i]);
  }
}

template <class Op, class T>
void AccumulateBlock(const std::vector<Operand>& operands, int64_t begin, int64_t end, T* out) {
  ComputeType<T> sum[kBlock];
  for (size_t k = 0; k < operands.size(); ++k) {
    const BroadcastPlan<1>& plan = operands[k].plan;
    const T* x = static_cast<const T*>(operands[k].data);
    ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 1>& from, int64_t n) {
      const auto accumulate = k == 0 ? &Accumulate<Op, T, true> : &Accumulate<Op, T, false>;
      accumulate(x + from[0], plan.step[0], sum + (to - begin), n);
    });
  }
  for (int64_t i = 0; i < end - begin; ++i) sum[i] = Op::Finish(sum[i], operands.size());
  if constexpr (kIsHalf<T>) {
    FromFloat(sum, out + begin, end - begin);
  } else {
    std::copy(sum, sum + (end - begin), out + begin);
  }
}

template <class Op>
class VariadicKernel : public Kernel {
 public:
  explicit VariadicKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const size_t count = ctx.input_count();
    NPU_OP_CHECK(Op::kName, count > 0, "expected at least one input, got none");
    const DType dtype = ctx.Input(0).dtype;
    Shape shape = ctx.Input(0).shape;
    for (size_t i = 1; i < count; ++i) {
      NPU_OP_CHECK(Op::kName, ctx.Input(i).dtype == dtype, "expected inputs of one type, got ", NameOf(dtype), " and ",
                   NameOf(ctx.Input(i).dtype));
      shape = BroadcastShapes(Op::kName, shape, ctx.Input(i).shape);
    }
    DispatchTypes(Op::kName, dtype, typename Op::Types{}, [&](auto type) {
      using T = decltype(type);
      const TensorView out = ctx.Output(0, dtype, shape);
      const int64_t total = out.elements();
      if (total == 0) return;
      std::vector<Operand> operands;
      for (size_t i = 0; i < count; ++i) {
        operands.push_back({ctx.Input(i).data, PlanBroadcast<1>(shape, {ctx.Input(i).shape})});
      }
      ctx.Launch(Op::kName, [operands = std::move(operands), po = out.as<T>(), total] {
        ParallelFor(total, kCheapGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; i += kBlock) {
            AccumulateBlock<Op, T>(operands, i, std::min(i + kBlock, end), po);
          }
        });
      });
    });
  }
};

template <class Op>
OpDef VariadicDef(const char* output, ShapeArithmetic shape_arithmetic = ShapeArithmetic::kNone) {
  constexpr DTypeSet kTypes = SetOf(typename Op::Types{});
  return {
      .type = Op::kName,
      .since = 6,  // of equal shapes until 8
      .until = 13,
      .inputs = {VariadicInput("data_0", kTypes)},
      .outputs = {Output(output, kTypes)},
      .may_alias = {{0, 0}},
      .shape_arithmetic = shape_arithmetic,
      .make = MakeKernel<VariadicKernel<Op>>,
  };
}

NPU_ONNX_KERNEL(VariadicDef<Min>("min", ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(VariadicDef<Max>("max", ShapeArithmetic::kElementwise));
NPU_ONNX_KERNEL(Light(VariadicDef<Sum>("sum")));
NPU_ONNX_KERNEL(VariadicDef<Mean>("mean"));

}  // namespace
}  // namespace npu
