// The sum of a product with a constant matrix and a residual, and the RMS norm of its rows.
#pragma once

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/normalization/add_rms_norm.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class NormedProduct {
 public:
  // Throws "[op] expected …, got …" unless residual and gamma fit a sum of this type and shape [.., N].
  static void CheckInputs(const char* op, const TensorView& residual, const TensorView& gamma, DType dtype,
                          const Shape& sum) {
    NPU_CHECK(residual.dtype == dtype && residual.shape == sum, "[", op, "] expected a residual ", NameOf(dtype), " ",
              sum, ", got ", NameOf(residual.dtype), " ", residual.shape);
    NPU_CHECK(gamma.dtype == dtype && gamma.shape == Shape{sum.back()}, "[", op, "] expected gamma ", NameOf(dtype),
              " [", sum.back(), "], got ", NameOf(gamma.dtype), " ", gamma.shape);
  }

  gemm::Matrix rows;
  gemm::PackedMatrix weight;
  TensorView residual, gamma, y, sum;  // y or sum may be absent
  double epsilon;
  gemm::Epilogue scaled = {};  // of the product

  // In the launch of `op`.
  void Run(const char* op) const {
    // The norm reads the rounded sum, which nothing else may want: then it is where the norm will be.
    const gemm::Result c{sum ? sum.data : y.data, residual.dtype, weight.columns};
    gemm::Epilogue epilogue = scaled;
    epilogue.addend = {residual.data, residual.dtype, weight.columns, 1};
    gemm::Multiply(rows, weight, c, epilogue);
    if (!y) return;
    DispatchFloats(op, residual.dtype, [&](auto tag) {
      using T = decltype(tag);
      RmsNorm(rows.rows, weight.columns, epsilon, static_cast<T*>(c.data), gamma.as<const T>(), y.as<T>());
    });
  }
};

}  // namespace npu
