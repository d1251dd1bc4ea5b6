// A product of rows with a constant matrix that is joined with what reads it: a gate, or a residual and a norm.
//
// The matrix is of a class that says
//   kGated, kNormed           the types of the joined operators
//   kInputs                   its inputs, the rows among them; an operator's last input may be its, too
//   Inputs(), LastInputs()    their definitions
//   Attributes(gated)         those of the operator that are for it
//   kResults                  the types of results
//   WhyUnsupported(node, i)   what of the node is not implemented, if anything; i: the last input
// and whose objects, made of (op, info, i, gated), take constants by PrePack and return the product by Of.
#pragma once

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/matmul/matmul_shape.h"

namespace npu {

struct ConstantProduct {
  MatMulShape shape;  // of the product alone
  gemm::Matrix rows;
  gemm::PackedMatrix weight;
  DType result = DType::kUndefined;  // if the product decides it
  gemm::Epilogue epilogue = {};      // scales at the most

  // The shapes and the rows of a product of x [.., K] and a matrix [K, N].
  static ConstantProduct Of(const char* op, const TensorView& x, const Shape& matrix) {
    ConstantProduct product{.shape = InferMatMul(op, x.shape, matrix)};
    const MatMulShape& s = product.shape;
    product.rows = gemm::Matrix::RowMajor(x.data, s.a_batches * s.m, s.k);
    return product;
  }
  // The matrix as panels have it; only its sizes are used.
  gemm::Matrix PanelSizes(bool gated) const {
    return gemm::Matrix::RowMajor(nullptr, shape.k, gated ? gemm::GatedColumns(shape.n) : shape.n);
  }
};

}  // namespace npu
