// Minimum, maximum and clamp in which NaN wins, as in torch.
#pragma once

namespace npu::detection {

template <class T>
T MinOrNaN(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
T MaxOrNaN(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
T Clamped(T value, T low, T high) {
  return value < low ? low : value > high ? high : value;
}

}  // namespace npu::detection
