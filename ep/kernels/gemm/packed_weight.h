// A constant B in panel order, in device memory: what matrix kernels keep of a weight after PrePack.
#pragma once

#include "ep/kernels/gemm/gemm.h"

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

  // What a weight of `dtype` is stored as.
  DType StoredAs(DType dtype) const { return dtype == DType::kFloat32 ? float32_products_ : dtype; }

  explicit operator bool() const { return packed_; }
  PackedMatrix matrix() const { return {data_, dtype_, stored_, rows_, columns_}; }

 private:
  CachingAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  DType float32_products_, dtype_ = DType::kUndefined, stored_ = DType::kUndefined;
  int64_t rows_ = 0, columns_ = 0;
  bool packed_ = false;
};

// Packs a weight kept as rows [N, K] in place (see PacksInPlace), behind what `stream` does already, and waits.
void PackInPlace(const char* op, const TensorView& rows, Stream& stream);

}  // namespace npu::gemm
