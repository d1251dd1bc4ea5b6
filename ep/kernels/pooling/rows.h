// Rows in the type that pools compute in: 16-bit floats as float.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/elementwise/types.h"

namespace npu::pooling {

// Reads rows of up to `width` elements; the result is valid until the next call.
template <class T>
class RowReader {
 public:
  explicit RowReader(int64_t width) : values_(kIsHalf<T> ? static_cast<size_t>(width) : 0) {}
  const ComputeType<T>* operator()(const T* row, int64_t n) {
    if constexpr (kIsHalf<T>) {
      ToFloat(row, values_.data(), n);
      return values_.data();
    } else {
      return row;
    }
  }

 private:
  std::vector<ComputeType<T>> values_;
};

// A buffer for a row of up to `width` results, which Commit stores.
template <class T>
class RowWriter {
 public:
  explicit RowWriter(int64_t width) : values_(kIsHalf<T> ? static_cast<size_t>(width) : 0) {}
  ComputeType<T>* Values(T* row) {
    if constexpr (kIsHalf<T>) {
      return values_.data();
    } else {
      return row;
    }
  }
  void Commit(T* row, int64_t n) {
    if constexpr (kIsHalf<T>) FromFloat(values_.data(), row, n);
  }

 private:
  std::vector<ComputeType<T>> values_;
};

}  // namespace npu::pooling
