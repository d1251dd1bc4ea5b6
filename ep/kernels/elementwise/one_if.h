// Conditions as elements of any fixed-width type.
#pragma once

#include "ep/kernels/elementwise/upcast.h"

namespace npu {

// 1 or true if the condition holds, else 0 or false.
template <class T>
T OneIf(bool condition) {
  if constexpr (std::is_same_v<T, Truth>) {
    return Truth{condition};
  } else {
    return Rounded<T>(condition ? ComputeType<T>{1} : ComputeType<T>{0});
  }
}

}  // namespace npu
