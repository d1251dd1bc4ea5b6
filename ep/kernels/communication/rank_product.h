// A product whose rows are computed in pieces: one rank's part of an operator that communicates.
#pragma once

#include <algorithm>
#include <memory>

#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The right operand [K, N], packed if it is a constant.
class RankWeight {
 public:
  // `left` is the type of the left operand: integers times integers are packed in another way than floats times them.
  bool Pack(const char* op, DType left, const TensorView& constant, Stream& stream) {
    if (constant.shape.rank() != 2 || left == DType::kUndefined) return false;
    const gemm::Matrix matrix = gemm::Matrix::RowMajor(constant.data, constant.shape[0], constant.shape[1]);
    weight_only_ = constant.dtype == DType::kInt8 && left != DType::kInt8;
    weight_only_ ? packed_.PackQuantized(op, constant.dtype, matrix, stream)
                 : packed_.Pack(op, constant.dtype, matrix, stream);
    view_ = constant;
    view_.data = nullptr;
    return true;
  }

  explicit operator bool() const { return static_cast<bool>(packed_); }
  TensorView Of(OpContext& ctx, size_t input) const { return packed_ ? view_ : ctx.Input(input); }

  // The panels for a left operand of `left`.
  gemm::PackedMatrix Panels(const gemm::Matrix& given, DType left, const gemm::Dequantization& dequantization) const {
    return weight_only_ ? packed_.quantized(given, left, dequantization) : packed_.matrix(given);
  }

 private:
  gemm::PackedWeight packed_;
  TensorView view_;  // type and shape
  bool weight_only_ = false;
};

class RankProduct {
 public:
  DType left = DType::kUndefined;  // of the elements of `a`
  gemm::Matrix a;
  TensorView b;
  gemm::Epilogue epilogue = {};
  gemm::Dequantization dequantization = {};

  // Packs a right operand that is no constant once for the several products of a call: each of them would pack it.
  void PackFor(int64_t products, const RankWeight& weight) {
    const int64_t k = b.shape[0], n = b.shape[1];
    if (weight || products < 2 || k == 0 || n == 0) return;
    const gemm::Matrix right = gemm::Matrix::RowMajor(b.data, k, n);
    const bool weight_only = b.dtype == DType::kInt8 && left != DType::kInt8;
    const size_t bytes = weight_only ? gemm::QuantizedBytes(b.dtype, k, n) : gemm::PackedBytes(b.dtype, k, n);
    panels_ = std::make_shared<gemm::AlignedBuffer>();
    void* const to = panels_->Reserve(static_cast<int64_t>(bytes));
    if (weight_only) {
      gemm::PackQuantized(b.dtype, right, to);
      packed_ = {to, left, b.dtype, k, n, dequantization};
    } else {
      gemm::Pack(b.dtype, right, to, b.dtype);
      packed_ = {to, b.dtype, b.dtype, k, n, {}};
    }
  }

  // `count` rows of the product of `rows`, of which row 0 has the epilogue's values of row `first`.
  void Multiply(const RankWeight& weight, const void* rows, int64_t first, int64_t count, const gemm::Result& c) const {
    if (count == 0 || b.shape[1] == 0) return;
    const gemm::Matrix left_rows = gemm::Matrix::RowMajor(rows, count, a.columns);
    gemm::Epilogue of_rows = epilogue;
    const auto skip = [first](gemm::PerLine<float>& line) {
      if (line.data) line.data += first * line.stride;
    };
    skip(of_rows.row_scale);
    skip(of_rows.total_scale);
    if (of_rows.addend.data)
      of_rows.addend.data = static_cast<const char*>(of_rows.addend.data) +
                            BytesFor(of_rows.addend.dtype, first * of_rows.addend.row_stride);
    if (panels_) return gemm::Multiply(left_rows, packed_, c, of_rows);
    const gemm::Matrix right = gemm::Matrix::RowMajor(b.data, b.shape[0], b.shape[1]);
    if (weight) return gemm::Multiply(left_rows, weight.Panels(right, left, dequantization), c, of_rows);
    gemm::Multiply(left, left_rows, b.dtype, right, c, of_rows, dequantization);
  }

  // The same of the operand's own rows.
  void MultiplyOwn(const RankWeight& weight, int64_t first, int64_t count, const gemm::Result& c) const {
    const char* rows = static_cast<const char*>(a.data);
    Multiply(weight, rows ? rows + BytesFor(left, first * a.columns) : nullptr, first, count, c);
  }

 private:
  std::shared_ptr<gemm::AlignedBuffer> panels_;  // of this call
  gemm::PackedMatrix packed_;                    // in them
};

}  // namespace npu
