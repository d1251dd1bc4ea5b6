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

  explicit operator bool() const { return packed_; }
  PackedMatrix matrix() const { return {data_, dtype_, stored_, rows_, columns_}; }

 private:
  CachingAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  DType float32_products_, dtype_ = DType::kUndefined, stored_ = DType::kUndefined;
  int64_t rows_ = 0, columns_ = 0;
  bool packed_ = false;
};

}  // namespace npu::gemm
