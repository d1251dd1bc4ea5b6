// A constant B in panel order, in device memory: what matmul kernels keep of a weight after PrePack.
#pragma once

#include <functional>
#include <memory>

#include "ep/kernels/gemm/gemm.h"
#include "ep/runtime/shared_matrix.h"

namespace npu {
class CachingAllocator;
}

namespace npu::gemm {

class PackedWeight {
 public:
  // `float32_products`: the dtype in which float32 weights are stored, see KernelInfo.
  explicit PackedWeight(DType float32_products = DType::kFloat32) : float32_products_(float32_products) {}
  ~PackedWeight();
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  // Packs after the work already queued on `stream`, and waits. `op` names the operator in errors.
  void Pack(const char* op, DType dtype, const Matrix& b, Stream& stream);
  // The same for a matrix [k, n] that `b` makes, unless its panels are there already.
  void Pack(const char* op, DType dtype, int64_t k, int64_t n, const std::function<Matrix()>& b, Stream& stream);
  // The same for a row-major tensor, which must be a matrix.
  void Pack(const char* op, const TensorView& b, Stream& stream);
  // The same for a gate and values side by side: see gemm::PackGated.
  void PackGated(const char* op, DType dtype, const Matrix& b, Stream& stream);
  // The same for a quantised weight of float matmuls.
  void PackQuantized(const char* op, DType dtype, const Matrix& b, Stream& stream);
  // The same for a gate and values side by side: see gemm::PackQuantizedGated.
  void PackQuantizedGated(const char* op, DType dtype, const Matrix& b, Stream& stream);

  // For a SharedMatrixReader whose weight is stored as rows [N, K]: packs panels in place, without a copy.
  SharedMatrixReader::Panels PanelsOf(const TensorView& rows) const;
  void UsePanels(const char* op, const TensorView& rows, bool reorder, Stream& stream);

  // True if this holds a copy, so that the weight itself is not needed.
  explicit operator bool() const { return packed_; }
  // True if there are panels, in the copy or in the weight's own memory.
  bool has_panels() const { return packed_ || in_place_; }
  // The panels; `given` is the weight that the kernel receives.
  PackedMatrix matrix(const Matrix& given) const {
    return {packed_ ? data_ : given.data, dtype_, stored_, given.rows, given.columns};
  }
  // The panels made by PackQuantized or PackQuantizedGated, for A of `dtype`.
  PackedMatrix quantized(const Matrix& given, DType dtype, const Dequantization& dequantization) const {
    return {data_, dtype, stored_, given.rows, given.columns, dequantization};
  }

 private:
  // The dtype in which a weight of `dtype` is stored.
  DType StoredAs(DType dtype) const {
    if (dtype == DType::kInt4) return DType::kInt8;
    return dtype == DType::kFloat32 ? float32_products_ : dtype;
  }
  // Takes a block of `bytes` that was packed before (PackedBlocks), or allocates device memory and launches
  // pack(memory).
  void PackInto(const char* op, size_t bytes, const std::function<void(void*)>& pack, Stream& stream);

  CachingAllocator* allocator_ = nullptr;   // of data_, unless that was
  std::shared_ptr<const void> taken_ = {};  // packed before
  void* data_ = nullptr;
  DType float32_products_, dtype_ = DType::kUndefined, stored_ = DType::kUndefined;
  bool packed_ = false, in_place_ = false;
};

// Packs a weight stored as rows [N, K] in place (see PacksInPlace), after the work queued on `stream`, and waits.
void PackInPlace(const char* op, const TensorView& rows, Stream& stream);

}  // namespace npu::gemm
