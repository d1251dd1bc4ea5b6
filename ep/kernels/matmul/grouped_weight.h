// The matrices of groups, [groups, K, N], of floats or of integers: each is multiplied as it is, or from panels that
// are packed once if they are constant.
#pragma once

#include <deque>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantized_weight.h"

namespace npu {

class GroupedWeight {
 public:
  // What the matrices are and are multiplied with.
  struct Layout {
    DType left = DType::kUndefined;    // elements of the left operand: of any float type, int8 or int4
    DType stored = DType::kUndefined;  // elements of the matrices: left's, int8 or int4
    int64_t groups = 0, k = 0, n = 0;
    bool along_columns = false;  // words of int4

    bool floats() const { return gemm::Supports(left) && stored == left; }
    // Multiplied with a Dequantization, which int4 always is.
    bool dequantised() const { return stored == DType::kInt4 || (gemm::Supports(left) && stored != left); }
    bool operator==(const Layout&) const = default;
  };

  // `weight` is [groups, K, N] or, for one group, [K, N]; its int32 words hold int4. Throws "[op] expected …".
  static Layout LayoutOf(const char* op, const TensorView& weight, DType left, int64_t k) {
    Layout out{.left = left, .stored = weight.dtype, .k = k};
    const Shape& shape = weight.shape;
    out.groups = shape.rank() == 2 ? 1 : shape[0];
    if (gemm::Supports(weight.dtype)) {
      NPU_OP_CHECK(op, shape[shape.rank() - 2] == k, "expected weight [.., ", k, ", N], got ", shape);
      out.n = shape.back();
      return out;
    }
    const QuantizedWeight integers = QuantizedWeight::Of(op, "weight", weight, k);
    out.stored = integers.dtype;
    out.n = integers.n;
    out.along_columns = integers.along_columns;
    return out;
  }

  // Packs all matrices after the work queued on `stream`, and waits.
  void Pack(const char* op, const TensorView& weight, const Layout& layout, Stream& stream) {
    layout_ = layout;
    for (int64_t group = 0; group < layout.groups; ++group) {
      const gemm::Matrix b = MatrixOf(layout, weight.data, group);
      gemm::PackedWeight& packed = packed_.emplace_back();
      layout.dequantised() ? packed.PackQuantized(op, layout.stored, b, stream)
                           : packed.Pack(op, layout.stored, b, stream);
    }
    is_packed_ = true;
  }
  explicit operator bool() const { return is_packed_; }
  const Layout& layout() const { return layout_; }

  // c = a * matrix `group`. `weight` is not used if the matrices are packed.
  void Multiply(const Layout& layout, const void* weight, int64_t group, const gemm::Matrix& a, const gemm::Result& c,
                const gemm::Epilogue& epilogue, const gemm::Dequantization& dequantization = {}) const {
    const gemm::Matrix b = MatrixOf(layout, weight, group);
    if (!is_packed_) return gemm::Multiply(layout.left, a, layout.stored, b, c, epilogue, dequantization);
    const gemm::PackedWeight& packed = packed_[static_cast<size_t>(group)];
    gemm::PackedMatrix panels =
        layout.dequantised() ? packed.quantized(b, layout.left, dequantization) : packed.matrix(b);
    panels.dtype = layout.left;
    gemm::Multiply(a, panels, c, epilogue);
  }

 private:
  static gemm::Matrix MatrixOf(const Layout& layout, const void* weight, int64_t group) {
    if (layout.floats()) {
      const char* data = static_cast<const char*>(weight);
      if (data) data += BytesFor(layout.stored, group * layout.k * layout.n);
      return gemm::Matrix::RowMajor(data, layout.k, layout.n);
    }
    return QuantizedWeight{layout.stored, layout.k, layout.n, layout.along_columns}.At(weight, group);
  }

  Layout layout_;
  std::deque<gemm::PackedWeight> packed_;
  bool is_packed_ = false;
};

}  // namespace npu
