// Matmuls of the element types without a matrix unit: integers, which wrap, and double.
#pragma once

#include <algorithm>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/gemm/gemm.h"

namespace npu {

// c[m][n] = a * b, row-major; `Sum` is an element type at least as wide as T.
template <class T, class Sum>
void PlainProduct(const gemm::Matrix& a, const gemm::Matrix& b, Sum* c) {
  using W = Wrapping<Sum>;
  const T* a_data = static_cast<const T*>(a.data);
  const T* b_data = static_cast<const T*>(b.data);
  const int64_t n = b.columns, depth = a.columns;
  constexpr int64_t kGrainWork = 64 << 10;
  const int64_t row_work = std::max<int64_t>(1, n * std::max<int64_t>(1, depth));
  ParallelFor(a.rows, std::max<int64_t>(1, kGrainWork / row_work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      W* out = reinterpret_cast<W*>(c) + i * n;
      std::fill(out, out + n, W{0});
      const T* row = a_data + i * a.row_stride;
      if (b.column_stride == 1) {
        for (int64_t k = 0; k < depth; ++k) {
          const W x = static_cast<W>(static_cast<Sum>(row[k * a.column_stride]));
          const T* b_row = b_data + k * b.row_stride;
          for (int64_t j = 0; j < n; ++j) out[j] += x * static_cast<W>(static_cast<Sum>(b_row[j]));
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          const T* column = b_data + j * b.column_stride;
          W sum{0};
          for (int64_t k = 0; k < depth; ++k)
            sum += static_cast<W>(static_cast<Sum>(row[k * a.column_stride])) *
                   static_cast<W>(static_cast<Sum>(column[k * b.row_stride]));
          out[j] = sum;
        }
      }
    }
  });
}

// Calls f(T{}) for those of these types that ONNX's MatMul and Gemm accept.
template <class F>
void DispatchPlain(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(double{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    default:
      Fail(ErrorCode::kInvalidArgument, "[", op, "] expected numbers of 16 bits or more, got ", NameOf(dtype));
  }
}

inline constexpr DTypeSet kMatrixTypes =
    kFloats | DTypeSet{DType::kFloat64, DType::kInt32, DType::kInt64, DType::kUInt32, DType::kUInt64};

}  // namespace npu
