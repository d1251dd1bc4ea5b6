// Elementwise operators: one formula, f(inputs…, numbers…), of inputs that broadcast and numbers that are attributes
// of the node. Such an operator is no more than its definition:
//
//   NPU_ONNX_KERNEL(AtenFunction<"Hypot">([](auto x, auto y) { return std::hypot(x, y); }, {"self", "other"}));
//   NPU_ONNX_KERNEL(OnnxFunction<"LeakyRelu">([](auto x, auto alpha) { return x < 0 ? alpha * x : x; }, {6, 16}, {"X"},
//                                             "Y", {FloatAttribute("alpha", 0.01)}));
//   NPU_ONNX_KERNEL(OnnxFunction<"Less", NumericTypes, kCheapGrain>([](auto a, auto b) { return a < b; }, {7, 13},
//                                                                   {"A", "B"}, "C"));
//
// Beside the name stand the types of elements, FloatTypes unless said otherwise, and how many elements are worth
// another thread, kMathGrain unless it is a few cycles each.
//
// f is called with ComputeType<T> of each element, and with numbers of that type too, or double where that is an
// integer. Of what it returns, a bool is a result of type bool; anything else is converted to the type of the inputs.
// Its type says all of it: f captures nothing. A class in place of a lambda may have, beside operator(),
//
//   bool Takes(C inputs…) const       of integers, say, no divisor 0: looked at before any of a row is computed;
//   void Refuse(C inputs…) const      throws, called with inputs that it does not take;
//   void Row(const C* inputs…, C* out, int64_t n) const      for rows that a loop over elements would not serve best,
//                                     of the types that it is declared for, where no input stands still; out may be
//                                     one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/function_row.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {

template <size_t n>
struct Text {  // a literal as a template argument
  char characters[n];
  constexpr Text(const char (&text)[n]) { std::copy_n(text, n, characters); }  // NOLINT: it is the literal
};

namespace internal {

// What a launch needs to know of a function of one type.
template <size_t inputs, size_t numbers>
struct FunctionCall {
  const char* op;
  FunctionRow<inputs> row;
  std::array<double, numbers> values;
  DType out_dtype;
  int64_t grain;
};

// Checks the inputs, allocates output 0 and launches `row` over its rows.
template <size_t inputs, size_t numbers>
void LaunchFunction(OpContext& ctx, const std::array<TensorView, inputs>& in,
                    const FunctionCall<inputs, numbers>& call) {
  const TensorView& first = in[0];
  std::array<const char*, inputs> data;
  for (size_t k = 0; k < inputs; ++k) {
    const TensorView& view = in[k];
    NPU_OP_CHECK(call.op, view.dtype == first.dtype, "expected inputs of one type, got ", NameOf(first.dtype), " and ",
                 NameOf(view.dtype));
    data[k] = view.as<const char>();
  }
  Shape shape = BroadcastShapes(call.op, first.shape, in[1].shape);
  for (size_t k = 2; k < inputs; ++k) shape = BroadcastShapes(call.op, shape, in[k].shape);
  const TensorView out = ctx.Output(0, call.out_dtype, shape);
  const auto size = static_cast<int64_t>(BytesFor(first.dtype, 1));
  const auto out_size = static_cast<int64_t>(BytesFor(call.out_dtype, 1));
  const auto plan = [&]<size_t... k>(std::index_sequence<k...>) {
    return PlanBroadcast<static_cast<int>(inputs)>(shape, {in[k].shape...});
  }(std::make_index_sequence<inputs>());
  if (plan.total == 0) return;
  ctx.Launch(call.op, [plan, data, size, out_size, row = call.row, values = call.values, grain = call.grain,
                       to = out.as<char>()] {
    ParallelFor(plan.total, grain, [&](int64_t begin, int64_t end) {
      ForEachRow(plan, begin, end, [&](int64_t place, const std::array<int64_t, inputs>& offset, int64_t n) {
        std::array<const char*, inputs> from;
        for (size_t k = 0; k < inputs; ++k) from[k] = data[k] + offset[k] * size;
        row(from, plan.step, values.data(), to + place * out_size, n);
      });
    });
  });
}

// The same where there is nothing to broadcast.
template <size_t numbers>
void LaunchFunction(OpContext& ctx, const std::array<TensorView, 1>& in, const FunctionCall<1, numbers>& call) {
  const TensorView out = ctx.Output(0, call.out_dtype, in[0].shape);
  const int64_t total = out.elements();
  if (total == 0) return;
  const auto size = static_cast<int64_t>(BytesFor(in[0].dtype, 1));
  const auto out_size = static_cast<int64_t>(BytesFor(call.out_dtype, 1));
  ctx.Launch(call.op, [row = call.row, values = call.values, grain = call.grain, from = in[0].as<const char>(),
                       to = out.as<char>(), size, out_size, total] {
    ParallelFor(total, grain, [&](int64_t begin, int64_t end) {
      row({from + begin * size}, {1}, values.data(), to + begin * out_size, end - begin);
    });
  });
}

template <Text name, class List, int64_t grain, class F, size_t inputs, size_t numbers>
class FunctionKernel final : public Kernel {
 public:
  FunctionKernel(const KernelInfo& info, const std::vector<AttrDef>& attributes) {
    for (size_t m = 0; m < numbers; ++m) values_[m] = info.attributes.Float(attributes[m].name);
  }
  void Compute(OpContext& ctx) const override { Compute(ctx, std::make_index_sequence<inputs>()); }

  // The types of the output.
  static constexpr DTypeSet Results() { return Results(List{}); }

 private:
  using Loop = FunctionLoop<F, std::make_index_sequence<inputs>, std::make_index_sequence<numbers>>;
  template <class First, class... Rest>
  static constexpr DTypeSet Results(Types<First, Rest...> list) {
    return Loop::template kPredicate<First> ? DTypeSet{DType::kBool} : SetOf(list);
  }

  template <size_t... k>
  void Compute(OpContext& ctx, std::index_sequence<k...>) const {
    const std::array<TensorView, inputs> in{ctx.Input(k)...};
    const DType dtype = in[0].dtype;
    DispatchTypes(name.characters, dtype, List{}, [&](auto type) {
      using T = decltype(type);
      constexpr FunctionRow<inputs> kRow = &Loop::template Row<T, (grain >= kCheapGrain)>;
      const DType out_dtype = Loop::template kPredicate<T> ? DType::kBool : dtype;
      LaunchFunction(ctx, in, FunctionCall<inputs, numbers>{name.characters, kRow, values_, out_dtype, grain});
    });
  }

  std::array<double, numbers> values_;
};

template <class K, size_t inputs>
OpDef FunctionDef(const char* type, DTypeSet types, const char* const (&names)[inputs], const char* output,
                  std::vector<AttrDef> attributes) {
  OpDef def;
  def.type = type;
  def.outputs = {Output(output, K::Results())};
  for (size_t k = 0; k < inputs; ++k) {
    def.inputs.push_back(Input(names[k], types));
    if (K::Results().bits() == types.bits()) def.may_alias.emplace_back(static_cast<int>(k), 0);
  }
  def.make = [attributes](const KernelInfo& info) -> std::unique_ptr<Kernel> {
    return std::make_unique<K>(info, attributes);
  };
  def.attributes = std::move(attributes);
  return def;
}

}  // namespace internal

// A standard operator, in the names of its schema.
struct Versions {
  int since = 1, until = 1;
};
template <Text name, class List = FloatTypes, int64_t grain = kMathGrain, class F, size_t inputs, size_t numbers>
OpDef OnnxFunction(F, Versions versions, const char* const (&names)[inputs], const char* output,
                   const AttrDef (&attributes)[numbers]) {
  using K = internal::FunctionKernel<name, List, grain, F, inputs, numbers>;
  OpDef def =
      internal::FunctionDef<K>(name.characters, SetOf(List{}), names, output, {attributes, attributes + numbers});
  def.since = versions.since;
  def.until = versions.until;
  return def;
}
template <Text name, class List = FloatTypes, int64_t grain = kMathGrain, class F, size_t inputs>
OpDef OnnxFunction(F, Versions versions, const char* const (&names)[inputs], const char* output) {
  using K = internal::FunctionKernel<name, List, grain, F, inputs, 0>;
  OpDef def = internal::FunctionDef<K>(name.characters, SetOf(List{}), names, output, {});
  def.since = versions.since;
  def.until = versions.until;
  return def;
}

// An operator of torch's bridge, whose domain is its own: it is no part of any model.
template <Text name, class List = FloatTypes, int64_t grain = kMathGrain, class F, size_t inputs, size_t numbers>
OpDef AtenFunction(F f, const char* const (&names)[inputs], const AttrDef (&attributes)[numbers]) {
  OpDef def = OnnxFunction<name, List, grain>(f, {}, names, "out", attributes);
  def.domain = "npu.aten";
  return def;
}
template <Text name, class List = FloatTypes, int64_t grain = kMathGrain, class F, size_t inputs>
OpDef AtenFunction(F f, const char* const (&names)[inputs]) {
  OpDef def = OnnxFunction<name, List, grain>(f, {}, names, "out");
  def.domain = "npu.aten";
  return def;
}

}  // namespace npu
