#include "ep/kernels/gemm/gate.h"

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::gemm {

namespace {

template <float (*kSilu)(float)>
void Gate(const float* sums, int64_t rows, float* results) {
  for (int64_t r = 0; r < rows; ++r, sums += kPanelColumns, results += kLanes) {
    float values[kLanes];
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) values[j] = kSilu(sums[j]) * sums[j + kLanes];
    for (int j = 0; j < kLanes; ++j) results[j] = values[j];
  }
}

}  // namespace

void GateRows(const float* sums, int64_t rows, bool rough, float* results) {
  rough ? Gate<RoughSilu>(sums, rows, results) : Gate<Silu>(sums, rows, results);
}

}  // namespace npu::gemm
