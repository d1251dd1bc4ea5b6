// A constant B in panel order, in device memory: what matrix kernels keep of a weight after PrePack.
#pragma once

#include <functional>

#include "ep/kernels/gemm/gemm.h"
#include "ep/runtime/shared_matrix.h"

namespace npu {
class CachingAllocator;
}

namespace npu::gemm {

class PackedWeight {
 public:
  // `float32_products`: what float32 weights are stored as, see KernelInfo.
  explicit PackedWeight(DType float32_products = DType::kFloat32) : float32_products_(float32_products) {}
  ~PackedWeight();
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  // Packs behind what `stream` does already, and waits. `op` names the operator in errors.
  void Pack(const char* op, DType dtype, const Matrix& b, Stream& stream);
  // The same for integers that an A of floats is multiplied with.
  void PackQuantized(const char* op, DType dtype, const Matrix& b, Stream& stream);

  // For a SharedMatrixReader whose weight is kept as rows [N, K]: panels in the weight's own place, and no copy.
  SharedMatrixReader::Panels PanelsOf(const TensorView& rows) const;
  void UsePanels(const char* op, const TensorView& rows, bool reorder, Stream& stream);

  // True when this holds a copy, so that the weight itself is not needed.
  explicit operator bool() const { return packed_; }
  // True when there are panels, in the copy or in the weight's own place.
  bool has_panels() const { return packed_ || in_place_; }
  // The panels; `given` is the weight as the kernel gets it.
  PackedMatrix matrix(const Matrix& given) const {
    return {packed_ ? data_ : given.data, dtype_, stored_, given.rows, given.columns};
  }
  // The panels that PackQuantized made, for an A of `dtype`.
  PackedMatrix quantized(const Matrix& given, DType dtype, const Dequantization& dequantization) const {
    return {data_, dtype, stored_, given.rows, given.columns, dequantization};
  }

 private:
  // What a weight of `dtype` is stored as.
  DType StoredAs(DType dtype) const {
    if (dtype == DType::kInt4) return DType::kInt8;
    return dtype == DType::kFloat32 ? float32_products_ : dtype;
  }
  // Runs pack(memory) for `bytes` of device memory, which are then kept.
  void PackInto(const char* op, size_t bytes, const std::function<void(void*)>& pack, Stream& stream);

  CachingAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  DType float32_products_, dtype_ = DType::kUndefined, stored_ = DType::kUndefined;
  bool packed_ = false, in_place_ = false;
};

// Packs a weight kept as rows [N, K] in place (see PacksInPlace), behind what `stream` does already, and waits.
void PackInPlace(const char* op, const TensorView& rows, Stream& stream);

}  // namespace npu::gemm
