// The elements of matrices of 8- and 4-bit integers.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/gemm.h"

namespace npu::gemm {

// Elements of a matrix of 4-bit integers: two in a byte, the lower half first.
class Int4Elements {
 public:
  Int4Elements(const void* data, int64_t first) : data_(static_cast<const uint8_t*>(data)), first_(first) {}
  int8_t operator[](int64_t i) const {
    const int64_t at = first_ + i;
    const int half = data_[at >> 1] >> ((at & 1) * 4) & 15;
    return static_cast<int8_t>((half ^ 8) - 8);
  }
  Int4Elements operator+(int64_t i) const { return {data_, first_ + i}; }

 private:
  const uint8_t* data_;
  int64_t first_;
};

// f(elements from `offset` on) of a matrix of `dtype`; each is an integer when indexed.
template <class F>
void WithElements(DType dtype, const Matrix& m, int64_t offset, const F& f) {
  if (dtype == DType::kInt8) return f(static_cast<const int8_t*>(m.data) + offset);
  if (dtype == DType::kUInt8) return f(static_cast<const uint8_t*>(m.data) + offset);
  f(Int4Elements(m.data, offset));
}

}  // namespace npu::gemm
