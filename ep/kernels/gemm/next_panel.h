// Prefetching while a panel is packed from a B whose columns lie side by side.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

// With a row of this panel, the same row of the next one: rows are too far apart for the processor to do so, and it
// arrives in the L2 cache while this panel is multiplied. `row` points to the panel's first element.
template <class T>
[[gnu::always_inline]] inline void PrefetchRowOfNextPanel(const T* row) {
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int kSecondLevel = 2;
  for (int64_t last = 2 * kPanelColumns - 1; last >= kPanelColumns; last -= kLine)
    __builtin_prefetch(row + last, 0, kSecondLevel);
}

}  // namespace npu::gemm
