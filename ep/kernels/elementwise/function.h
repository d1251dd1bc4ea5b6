// Elementwise operators that are one formula, f(inputs…, numbers…): the inputs broadcast, the numbers are attributes of
// the node. Such an operator is no more than its definition:
//
//   NPU_ONNX_KERNEL(AtenFunction<"Hypot">([](auto x, auto y) { return std::hypot(x, y); }, {"self", "other"}));
//
// f is called with ComputeType<T> of each element, and with numbers of that type too, or double where that is an
// integer. Its type says all of it: f captures nothing. Where it has `void Check(const C* first_input, int64_t n)
// const`, that may refuse them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/safe_cast.h"

namespace npu {

template <size_t n>
struct Text {  // a literal as a template argument
  char characters[n];
  constexpr Text(const char (&text)[n]) { std::copy_n(text, n, characters); }  // NOLINT: it is the literal
};

namespace internal {

inline constexpr size_t kMaxNumbers = 4;
using Numbers = std::array<double, kMaxNumbers>;

// n elements of out from inputs that each move by their step, 0 or 1. `out` may be one of them.
template <size_t inputs>
using FunctionRow = void (*)(const std::array<const char*, inputs>& from, const std::array<int64_t, inputs>& step,
                             const Numbers& numbers, void* out, int64_t n);

// An input as a dense block of what is computed with, wherever it lies.
template <class T>
class Operand {
 public:
  using C = ComputeType<T>;
  Operand(const void* from, int64_t step, int64_t n) : from_(static_cast<const T*>(from)), moves_(step != 0) {
    if (moves_) return;
    C value;
    if constexpr (kIsHalf<T>) {
      value = ToFloat(*from_);
    } else {
      value = *from_;
    }
    std::fill_n(values_, std::min(n, kRowBlock), value);
  }
  const C* Load(int64_t begin, int64_t n) {
    if (!moves_) return values_;
    if constexpr (kIsHalf<T>) {
      ToFloat(from_ + begin, values_, n);
      return values_;
    } else {
      return from_ + begin;
    }
  }

 private:
  const T* from_;
  bool moves_;
  alignas(64) C values_[kRowBlock];
};

template <class C, class R>
C Rounded(R value) {
  if constexpr (std::is_integral_v<C> && std::is_floating_point_v<R>) {
    return SafeCast<C>(value);
  } else {
    return static_cast<C>(value);
  }
}

template <class F, class C, size_t... k, size_t... m>
void FunctionSteps(C* out, int64_t n, std::array<const C*, sizeof...(k)> in, const Numbers& numbers,
                   std::index_sequence<k...>, std::index_sequence<m...>) {
  using Number = std::conditional_t<std::is_integral_v<C>, double, C>;
  constexpr F f;
  if constexpr (requires { f.Check(in[0], n); }) f.Check(in[0], n);
  const std::array<Number, sizeof...(m)> number{static_cast<Number>(numbers[m])...};
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = Rounded<C>(f(in[k][i]..., number[m]...));
}

template <class F, class T, size_t numbers, size_t... k>
void RunFunction(const std::array<const char*, sizeof...(k)>& from, const std::array<int64_t, sizeof...(k)>& step,
                 const Numbers& values, void* out_data, int64_t n, std::index_sequence<k...> inputs) {
  using C = ComputeType<T>;
  Operand<T> operands[]{Operand<T>(from[k], step[k], n)...};
  T* out = static_cast<T*>(out_data);
  for (int64_t begin = 0; begin < n; begin += kRowBlock) {
    const int64_t count = std::min(kRowBlock, n - begin);
    const std::array<const C*, sizeof...(k)> in{operands[k].Load(begin, count)...};
    if constexpr (kIsHalf<T>) {
      alignas(64) float results[kRowBlock];
      FunctionSteps<F>(results, count, in, values, inputs, std::make_index_sequence<numbers>());
      FromFloat(results, out + begin, count);
    } else {
      FunctionSteps<F>(out + begin, count, in, values, inputs, std::make_index_sequence<numbers>());
    }
  }
}

// Checks the inputs, allocates output 0 and launches `row` over its rows.
template <size_t inputs>
void LaunchFunction(OpContext& ctx, const char* op, FunctionRow<inputs> row, const Numbers& numbers) {
  const DType dtype = ctx.Input(0).dtype;
  std::array<Shape, inputs> shapes;
  std::array<const char*, inputs> data;
  Shape shape = ctx.Input(0).shape;
  for (size_t k = 0; k < inputs; ++k) {
    const TensorView in = ctx.Input(k);
    NPU_CHECK(in && in.dtype == dtype, "[", op, "] expected ", inputs, " inputs of one type, got ", NameOf(dtype),
              " and ", in ? NameOf(in.dtype) : "none");
    shapes[k] = in.shape;
    data[k] = in.as<const char>();
    shape = BroadcastShapes(op, shape, in.shape);
  }
  const TensorView out = ctx.Output(0, dtype, shape);
  const auto plan = PlanBroadcast<static_cast<int>(inputs)>(shape, shapes);
  if (plan.total == 0) return;
  ctx.Launch(op, [plan, row, numbers, data, to = out.as<char>(), size = static_cast<int64_t>(BytesFor(dtype, 1))] {
    ParallelFor(plan.total, kMathGrain, [&](int64_t begin, int64_t end) {
      ForEachRow(plan, begin, end, [&](int64_t place, const std::array<int64_t, inputs>& offset, int64_t n) {
        std::array<const char*, inputs> from;
        for (size_t k = 0; k < inputs; ++k) from[k] = data[k] + offset[k] * size;
        row(from, plan.step, numbers, to + place * size, n);
      });
    });
  });
}

template <Text name, class F, class List, size_t inputs, size_t numbers>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(const Numbers& values) : numbers_(values) {}
  void Compute(OpContext& ctx) const override {
    DispatchTypes(name.characters, ctx.Input(0).dtype, List{},
                  [&](auto type) { LaunchFunction<inputs>(ctx, name.characters, &Row<decltype(type)>, numbers_); });
  }

 private:
  template <class T>
  static void Row(const std::array<const char*, inputs>& from, const std::array<int64_t, inputs>& step,
                  const Numbers& values, void* out, int64_t n) {
    RunFunction<F, T, numbers>(from, step, values, out, n, std::make_index_sequence<inputs>());
  }

  Numbers numbers_;
};

template <Text name, class F, class List, size_t numbers, size_t inputs>
OpDef FunctionDef(const char* const (&names)[inputs], std::vector<AttrDef> attributes) {
  static_assert(numbers <= kMaxNumbers);
  constexpr DTypeSet kTypes = SetOf(List{});
  OpDef def;
  def.type = name.characters;
  for (size_t k = 0; k < inputs; ++k) {
    def.inputs.push_back(Input(names[k], kTypes));
    def.may_alias.emplace_back(static_cast<int>(k), 0);
  }
  def.make = [attributes](const KernelInfo& info) -> std::unique_ptr<Kernel> {
    Numbers values{};
    for (size_t m = 0; m < attributes.size(); ++m) values[m] = info.attributes.Float(attributes[m].name);
    return std::make_unique<FunctionKernel<name, F, List, inputs, numbers>>(values);
  };
  def.attributes = std::move(attributes);
  return def;
}

}  // namespace internal

// An operator of torch's bridge, whose domain is its own: it is no part of any model.
template <Text name, class List = FloatTypes, class F, size_t inputs, size_t numbers>
OpDef AtenFunction(F, const char* const (&names)[inputs], const AttrDef (&attributes)[numbers]) {
  OpDef def = internal::FunctionDef<name, F, List, numbers>(names, {attributes, attributes + numbers});
  def.domain = "npu.aten";
  def.outputs = {Output("out", def.inputs[0].dtypes)};
  return def;
}
template <Text name, class List = FloatTypes, class F, size_t inputs>
OpDef AtenFunction(F, const char* const (&names)[inputs]) {
  OpDef def = internal::FunctionDef<name, F, List, 0>(names, {});
  def.domain = "npu.aten";
  def.outputs = {Output("out", def.inputs[0].dtypes)};
  return def;
}

// A standard operator, in the names of its schema.
struct Versions {
  int since = 1, until = 1;
};
template <Text name, class List = FloatTypes, class F, size_t inputs, size_t numbers>
OpDef OnnxFunction(F, Versions versions, const char* const (&names)[inputs], const char* output,
                   const AttrDef (&attributes)[numbers]) {
  OpDef def = internal::FunctionDef<name, F, List, numbers>(names, {attributes, attributes + numbers});
  def.since = versions.since;
  def.until = versions.until;
  def.outputs = {Output(output, def.inputs[0].dtypes)};
  return def;
}
template <Text name, class List = FloatTypes, class F, size_t inputs>
OpDef OnnxFunction(F, Versions versions, const char* const (&names)[inputs], const char* output) {
  OpDef def = internal::FunctionDef<name, F, List, 0>(names, {});
  def.since = versions.since;
  def.until = versions.until;
  def.outputs = {Output(output, def.inputs[0].dtypes)};
  return def;
}

}  // namespace npu
