// The loops of function.h: a row of the output from rows of the inputs, each of which moves with it or stands still.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/safe_cast.h"

namespace npu::internal {

inline constexpr int64_t kHalfBlock = 512;  // elements of a 16-bit row that are held as floats

// n elements of out from inputs that each move by their step, 0 or 1. `out` may be an input that moves.
template <size_t inputs>
using FunctionRow = void (*)(const std::array<const char*, inputs>& from, const std::array<int64_t, inputs>& step,
                             const double* numbers, char* out, int64_t n);

// Calls f(std::integer_sequence<bool, whether an input moves…>). Where none does, the row has one element and any loop
// serves: it is called as if the last moved.
template <bool... moves, size_t inputs, class F>
void WithMoves(const std::array<int64_t, inputs>& step, const F& f) {
  constexpr size_t k = sizeof...(moves);
  if constexpr (k == inputs) {
    f(std::integer_sequence<bool, moves...>());
  } else if constexpr (k + 1 == inputs && !(moves || ...)) {
    f(std::integer_sequence<bool, moves..., true>());
  } else if (step[k] != 0) {
    WithMoves<moves..., true>(step, f);
  } else {
    WithMoves<moves..., false>(step, f);
  }
}

template <class R, class Value>
R Rounded(Value value) {
  if constexpr (std::is_integral_v<R> && std::is_floating_point_v<Value>) {
    return SafeCast<R>(value);
  } else {
    return static_cast<R>(value);
  }
}

// A function of as many inputs and numbers as the sequences are long.
template <class F, class Inputs, class NumberSequence>
struct FunctionLoop;

template <class F, size_t... k, size_t... m>
struct FunctionLoop<F, std::index_sequence<k...>, std::index_sequence<m...>> {
  static constexpr size_t kInputs = sizeof...(k);
  template <class C>
  using Values = std::array<C, kInputs>;
  template <class C>
  using NumbersOf = std::array<std::conditional_t<std::is_integral_v<C>, double, C>, sizeof...(m)>;
  template <class C>
  using Result = decltype(F()(std::declval<Values<C>>()[k]..., std::declval<NumbersOf<C>>()[m]...));
  template <class T>
  static constexpr bool kPredicate = std::is_same_v<Result<ComputeType<T>>, bool>;
  template <class T>  // what the output holds for inputs of type T
  using Out = std::conditional_t<kPredicate<T>, uint8_t, T>;

  template <bool... moves, class C, class R>
  static void Compute(const Values<const C*>& in, const double* numbers, R* out, int64_t n) {
    constexpr F f;
    // Values of their own: `out` may be what is pointed to.
    const Values<C> first{*in[k]...};
    [[maybe_unused]] const NumbersOf<C> number{static_cast<typename NumbersOf<C>::value_type>(numbers[m])...};
    if constexpr (requires { f.Takes(first[k]...); }) {
      int refused = 0;
      for (int64_t i = 0; i < n; ++i) refused |= !f.Takes((moves ? in[k][i] : first[k])...);
      for (int64_t i = 0; refused != 0 && i < n; ++i)
        if (!f.Takes((moves ? in[k][i] : first[k])...)) f.Refuse((moves ? in[k][i] : first[k])...);
    }
    if constexpr ((moves && ...) && requires { f.Row(in[k]..., out, n); }) {
      f.Row(in[k]..., out, n);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = Rounded<R>(f((moves ? in[k][i] : first[k])..., number[m]...));
    }
  }

  // 16-bit floats pass through floats in L1, a block at a time.
  template <class T, bool... moves>
  static void ComputeHalf(const Values<const T*>& from, const Values<int64_t>& step, const double* numbers, Out<T>* out,
                          int64_t n) {
    alignas(64) float values[kInputs][kHalfBlock];
    alignas(64) float results[kHalfBlock];
    const Values<const float*> in{values[k]...};
    const auto upcast_standing = [n](const T* value, float* block, bool whole) {
      std::fill_n(block, whole ? std::min(n, kHalfBlock) : 1, ToFloat(*value));
    };
    ((step[k] == 0 ? upcast_standing(from[k], values[k], moves) : void()), ...);
    for (int64_t begin = 0; begin < n; begin += kHalfBlock) {
      const int64_t count = std::min(kHalfBlock, n - begin);
      ((moves && step[k] != 0 ? ToFloat(from[k] + begin, values[k], count) : void()), ...);
      if constexpr (kPredicate<T>) {
        Compute<moves...>(in, numbers, out + begin, count);
      } else {
        Compute<moves...>(in, numbers, results, count);
        FromFloat(results, out + begin, count);
      }
    }
  }

  // What stands still is met as a block of it.
  template <class T>
  static void ComputeFilled(const Values<const T*>& from, const Values<int64_t>& step, const double* numbers,
                            Out<T>* out, int64_t n) {
    alignas(64) T filled[kInputs][kRowBlock];
    ((step[k] == 0 ? void(std::fill_n(filled[k], std::min(n, kRowBlock), *from[k])) : void()), ...);
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      Compute<(k < kInputs)...>(Values<const T*>{(step[k] == 0 ? filled[k] : from[k] + begin)...}, numbers, out + begin,
                                count);
    });
  }

  // A FunctionRow. Where an element takes a few cycles there is a loop for each way in which inputs move, else
  // one loop.
  template <class T, bool cheap>
  static void Row(const Values<const char*>& from, const Values<int64_t>& step, const double* numbers, char* out_data,
                  int64_t n) {
    const Values<const T*> in{reinterpret_cast<const T*>(from[k])...};
    auto* const out = reinterpret_cast<Out<T>*>(out_data);
    if constexpr (cheap || kInputs == 1) {
      WithMoves(step, [&]<bool... moves>(std::integer_sequence<bool, moves...>) {
        if constexpr (kIsHalf<T>) {
          ComputeHalf<T, moves...>(in, step, numbers, out, n);
        } else {
          Compute<moves...>(in, numbers, out, n);
        }
      });
    } else if constexpr (kIsHalf<T>) {
      ComputeHalf<T, (k < kInputs)...>(in, step, numbers, out, n);
    } else {
      ComputeFilled(in, step, numbers, out, n);
    }
  }
};

}  // namespace npu::internal
