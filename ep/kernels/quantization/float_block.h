// Blocks of a tensor of any of the types that quantisation meets, as float32.
#pragma once

#include <algorithm>

#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class FloatBlock {
 public:
  // Up to kRowBlock elements from `at` on; valid until the next Load.
  const float* Load(const TensorView& tensor, int64_t at, int64_t count) {
    if (tensor.dtype == DType::kFloat32) return tensor.as<const float>() + at;
    switch (tensor.dtype) {
      case DType::kFloat16:
        ToFloat(tensor.as<const Float16>() + at, values_, count);
        break;
      case DType::kBFloat16:
        ToFloat(tensor.as<const BFloat16>() + at, values_, count);
        break;
      case DType::kInt32:
        Convert(tensor.as<const int32_t>() + at, count);
        break;
      case DType::kInt8:
        Convert(tensor.as<const int8_t>() + at, count);
        break;
      case DType::kUInt8:
        Convert(tensor.as<const uint8_t>() + at, count);
        break;
      default:
        Fail(ErrorCode::kInternal, "FloatBlock: expected a float or an 8-bit or 32-bit integer, got ",
             NameOf(tensor.dtype));
    }
    return values_;
  }

 private:
  template <class T>
  void Convert(const T* from, int64_t count) {
    std::transform(from, from + count, values_, [](T v) { return static_cast<float>(v); });
  }

  alignas(64) float values_[kRowBlock];
};

// All of a tensor, as floats.
inline void ConvertToFloats(const TensorView& tensor, float* to) {
  FloatBlock block;
  ForEachBlock(tensor.elements(), [&](int64_t begin, int64_t count) {
    const float* from = block.Load(tensor, begin, count);
    std::copy(from, from + count, to + begin);
  });
}

}  // namespace npu
