// How a scatter combines an update with the existing element: `reduction` of ScatterElements and ScatterND.
#pragma once

#include <cstring>
#include <string>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/op_check.h"

namespace npu {

enum class ScatterReduction { kNone, kAdd, kMul, kMax, kMin };

inline bool ParseScatterReduction(const std::string& name, ScatterReduction* reduction) {
  constexpr const char* kNames[] = {"none", "add", "mul", "max", "min"};
  for (int i = 0; i < 5; ++i) {
    if (name != kNames[i]) continue;
    *reduction = static_cast<ScatterReduction>(i);
    return true;
  }
  return false;
}

inline ScatterReduction ScatterReductionOf(const KernelInfo& info) {
  ScatterReduction reduction = ScatterReduction::kNone;
  const std::string name = info.attributes.String("reduction", "none");  // Scatter has none
  NPU_OP_CHECK(info.op_type, ParseScatterReduction(name, &reduction),
               "expected reduction none, add, mul, max or min, got ", name);
  return reduction;
}

// For OpDef::unsupported: bools can be moved, but not combined.
inline std::string WhyScatterUnsupported(const NodeView& node) {
  ScatterReduction reduction;
  const std::string name = node.attributes.String("reduction", "none");
  if (!ParseScatterReduction(name, &reduction)) return node.op_type + " with reduction \"" + name + "\" is unknown";
  if (reduction == ScatterReduction::kNone || node.inputs[0] != DType::kBool) return "";
  return node.op_type + " with reduction \"" + name + "\" of bool is not implemented";
}

// to[i] = to[i] (reduction) from[i] for n elements.
using CombineRow = void (*)(void* to, const void* from, int64_t n);

namespace internal {

template <ScatterReduction reduction, class C>
C CombineOne(C a, C b) {
  if constexpr (reduction == ScatterReduction::kMax) {
    return a > b || a != a ? a : b;  // NaN wins
  } else if constexpr (reduction == ScatterReduction::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (std::is_integral_v<C>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);  // wraps
    return static_cast<C>(reduction == ScatterReduction::kAdd ? x + y : x * y);
  } else {
    return reduction == ScatterReduction::kAdd ? a + b : a * b;
  }
}

template <ScatterReduction reduction, class T>
void CombineElements(void* to, const void* from, int64_t n) {
  T* y = static_cast<T*>(to);
  const T* x = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kIsHalf<T>) {
      y[i] = FromFloat<T>(CombineOne<reduction>(ToFloat(y[i]), ToFloat(x[i])));
    } else {
      y[i] = CombineOne<reduction>(y[i], x[i]);
    }
  }
}

template <class T>
CombineRow FindCombineOf(ScatterReduction reduction) {
  switch (reduction) {
    case ScatterReduction::kAdd:
      return &CombineElements<ScatterReduction::kAdd, T>;
    case ScatterReduction::kMul:
      return &CombineElements<ScatterReduction::kMul, T>;
    case ScatterReduction::kMax:
      return &CombineElements<ScatterReduction::kMax, T>;
    case ScatterReduction::kMin:
      return &CombineElements<ScatterReduction::kMin, T>;
    default:
      return [](void* to, const void* from, int64_t n) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T)); };
  }
}

}  // namespace internal

inline CombineRow FindCombine(const char* op, ScatterReduction reduction, DType dtype) {
  if (reduction == ScatterReduction::kNone) {
    return DispatchSize(BitsOf(dtype) / 8,
                        [](auto type) { return internal::FindCombineOf<decltype(type)>(ScatterReduction::kNone); });
  }
  return DispatchTypes(op, dtype, NumericTypes{},
                       [&](auto type) { return internal::FindCombineOf<decltype(type)>(reduction); });
}

}  // namespace npu
