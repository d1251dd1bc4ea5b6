#include "ep/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/gemm/product.h"
#include "ep/kernels/gemm/quantized.h"
#include "ep/kernels/gemm/rounded.h"

namespace npu::gemm {

namespace {

// An empty sum: C is the addend, or zero.
void StoreEmptySum(const Result& c, int64_t m, int64_t n, const Epilogue& epilogue, bool integers) {
  const int32_t no_sums[kPanelColumns] = {};
  const StoredIntegers stored;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; j += kPanelColumns) {
      float zeros[kPanelColumns] = {};
      const Tile tile{zeros, 1, std::min<int64_t>(kPanelColumns, n - j), i, j, no_sums};
      StoreTile(tile, c, epilogue, integers ? &stored : nullptr);
    }
  }
}

constexpr DTypeSet kQuantized{DType::kInt8, DType::kInt4};

void Check(DType dtype, const Matrix& a, DType b_dtype, int64_t b_rows, const Dequantization& dequantization) {
  const bool fit = dequantization.scale
                       ? (Supports(dtype) || kQuantized.Contains(dtype)) && kQuantized.Contains(b_dtype)
                   : Supports(dtype) ? b_dtype == dtype
                                     : kIntegerOperands.Contains(dtype) && kIntegerOperands.Contains(b_dtype);
  NPU_CHECK(fit, "[gemm] expected two matrices of float32, float16 or bfloat16, or of 8- or 4-bit integers, got ",
            NameOf(dtype), " and ", NameOf(b_dtype));
  NPU_CHECK(a.columns == b_rows, "[gemm] expected as many columns of A as rows of B, got ", a.columns, " and ", b_rows);
}

void MultiplyAny(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const void* packed_b, DType stored_b,
                 const Result& c, const Epilogue& epilogue, const Dequantization& dequantization) {
  Check(dtype, a, b_dtype, b.rows, dequantization);
  if (a.rows == 0 || b.columns == 0) return;
  const bool integers = kIntegerOperands.Contains(dtype);
  if (a.columns == 0) return StoreEmptySum(c, a.rows, b.columns, epilogue, integers && !dequantization.scale);
  if (MultipliesIntegers(dtype, a.rows, dequantization))
    return MultiplyRounded(dtype, a, b_dtype, b, packed_b, c, epilogue, dequantization);
  Product(dtype, a, b_dtype, b, packed_b, stored_b, c, epilogue, dequantization).Run();
}

// What a B of `dtype` is stored as when nothing is rounded.
DType StoredAs(DType dtype) { return dtype == DType::kInt4 ? DType::kInt8 : dtype; }

}  // namespace

namespace {

// If this does not overflow, no size below does.
void CheckExtent(int64_t k, int64_t n) {
  constexpr int64_t kMost = int64_t{1} << 56;
  NPU_CHECK(n == 0 || k <= kMost / (n + kPanelColumns), "[gemm] expected a matrix that fits memory, got [", k, ", ", n,
            "]");
}

// Whether nothing of it belongs to rows or to columns but the addend.
bool OnlyAdds(const Epilogue& epilogue) {
  return !epilogue.column_scale.data && !epilogue.row_scale.data && !epilogue.total_scale.data &&
         !epilogue.output_scale.data && !epilogue.output_offset.data && epilogue.gated_columns == 0;
}

constexpr int64_t kPackGrain = 128 << 10;  // bytes of panels that are worth another thread

// Calls pack(panel, its destination) for all panels of n columns, on the pool.
template <class F>
void PackPanels(int64_t n, int64_t panel_bytes, void* packed, const F& pack) {
  ParallelFor(PanelCount(n), std::max<int64_t>(1, kPackGrain / std::max<int64_t>(1, panel_bytes)),
              [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p) pack(p, static_cast<char*>(packed) + p * panel_bytes);
              });
}

}  // namespace

size_t PackedBytes(DType stored, int64_t k, int64_t n) {
  NPU_CHECK((Supports(stored) || stored == DType::kInt8 || stored == DType::kUInt8) && k >= 0 && n >= 0,
            "[gemm] expected a matrix of floats or 8-bit integers, got ", NameOf(stored), " [", k, ", ", n, "]");
  CheckExtent(k, n);
  return static_cast<size_t>(PanelCount(n) * PanelBytes(FormatOf(stored), k));
}

void Pack(DType dtype, const Matrix& b, void* packed, DType stored) {
  NPU_CHECK(stored == StoredAs(dtype) || (stored == DType::kBFloat16 && dtype == DType::kFloat32), "[gemm] expected ",
            NameOf(dtype), " stored as ", NameOf(StoredAs(dtype)), " or, if float32, rounded to bfloat16, got ",
            NameOf(stored));
  const PanelFormat format = FormatOf(stored);
  PackPanels(b.columns, PanelBytes(format, b.rows), packed,
             [&](int64_t panel, void* to) { PackPanel(format, dtype, b, panel, 0, b.rows, to); });
}

int64_t GatedColumns(int64_t n) { return (n / 2 + kLanes - 1) / kLanes * kPanelColumns; }

void PackGated(DType dtype, const Matrix& b, void* packed, DType stored) {
  const PanelFormat format = FormatOf(stored);
  const int64_t half = b.columns / 2;
  const auto bytes_of = [&](int64_t elements) { return static_cast<size_t>(elements * BitsOf(dtype) / 8); };
  PackPanels(GatedColumns(b.columns), PanelBytes(format, b.rows), packed, [&](int64_t panel, void* to) {
    const int64_t first = panel * kLanes, count = std::min<int64_t>(kLanes, half - first);
    char* const columns = static_cast<char*>(
        ProductScratch::OfThisThread().b.Reserve(static_cast<int64_t>(bytes_of(b.rows * kPanelColumns))));
    for (int64_t k = 0; k < b.rows; ++k) {
      const char* const row = static_cast<const char*>(b.data) + bytes_of(k * b.row_stride);
      char* const out = columns + bytes_of(k * kPanelColumns);
      std::memset(out, 0, bytes_of(kPanelColumns));
      std::memcpy(out, row + bytes_of(first), bytes_of(count));
      std::memcpy(out + bytes_of(kLanes), row + bytes_of(half + first), bytes_of(count));
    }
    PackPanel(format, dtype, Matrix::RowMajor(columns, b.rows, kPanelColumns), 0, 0, b.rows, to);
  });
}

size_t QuantizedBytes(DType stored, int64_t k, int64_t n) {
  NPU_CHECK(kQuantized.Contains(stored) && k >= 0 && n >= 0, "[gemm] expected a matrix of int8 or int4, got ",
            NameOf(stored), " [", k, ", ", n, "]");
  CheckExtent(k, n);
  return static_cast<size_t>(PanelCount(n) * QuantizedPanelBytes(BitsOf(stored), k));
}

void PackQuantized(DType dtype, const Matrix& b, void* packed) {
  PackPanels(b.columns, QuantizedPanelBytes(BitsOf(dtype), b.rows), packed,
             [&](int64_t panel, void* to) { PackQuantizedPanel(dtype, b, panel, 0, b.rows, to); });
}

void PackQuantizedGated(DType dtype, const Matrix& b, void* packed) {
  const int64_t half = b.columns / 2, panel_bytes = QuantizedPanelBytes(BitsOf(dtype), b.rows);
  constexpr int64_t kHalfRow = kStoredElements / 2;  // bytes of a stored row, or of two of 4-bit integers
  PackPanels(GatedColumns(b.columns), panel_bytes, packed, [&](int64_t panel, void* to) {
    const int64_t first = panel * kLanes;
    auto* const values = static_cast<char*>(ProductScratch::OfThisThread().b.Reserve(panel_bytes));
    const auto pack = [&](int64_t column, void* out) {
      Matrix part = b;
      part.data = static_cast<const char*>(b.data) + BytesFor(dtype, b.Offset(0, column));
      part.columns = std::min<int64_t>(kLanes, half - first);
      PackQuantizedPanel(dtype, part, 0, 0, b.rows, out);
    };
    pack(first, to);
    pack(half + first, values);
    for (int64_t at = 0; at < panel_bytes; at += 2 * kHalfRow)
      std::memcpy(static_cast<char*>(to) + at + kHalfRow, values + at, kHalfRow);
  });
}

bool PacksInPlace(DType dtype, int64_t k, int64_t n) {
  return Supports(dtype) && n % kPanelColumns == 0 && PaddedDepth(FormatOf(dtype), k) == k;
}

void PackInPlace(DType dtype, void* rows, int64_t k, int64_t n) {
  const PanelFormat format = FormatOf(dtype);
  const int64_t panel_bytes = PanelBytes(format, k);
  const Matrix b = Matrix::RowMajor(rows, n, k).Transposed();
  ParallelFor(PanelCount(n), 1, [&](int64_t begin, int64_t end) {
    void* panel = ProductScratch::OfThisThread().b.Reserve(panel_bytes);
    for (int64_t p = begin; p < end; ++p) {
      PackPanel(format, dtype, b, p, 0, k, panel);
      std::memcpy(static_cast<char*>(rows) + p * panel_bytes, panel, static_cast<size_t>(panel_bytes));
    }
  });
}

void CopyColumn(const PackedMatrix& b, int64_t column, void* out) {
  const PanelFormat format = FormatOf(b.stored);
  const char* panel = static_cast<const char*>(b.data) + column / kPanelColumns * PanelBytes(format, b.rows);
  UnpackColumn(format, panel, column % kPanelColumns, b.rows, out);
}

void Multiply(const Matrix& a, const PackedMatrix& b, const Result& c, const Epilogue& epilogue) {
  const bool integers = kIntegerOperands.Contains(b.stored);
  MultiplyAny(b.dtype, a, integers ? b.stored : b.dtype, Matrix::RowMajor(nullptr, b.rows, b.columns), b.data, b.stored,
              c, epilogue, b.dequantization);
}

void Multiply(DType dtype, const Matrix& a, const Matrix& b, const Result& c, const Epilogue& epilogue) {
  if (b.columns == 1 && a.rows > 1 && c.row_stride == 1 && OnlyAdds(epilogue)) {
    // A column is a row of the transposed product: a panel with one column would do the work of kPanelColumns.
    Epilogue transposed = epilogue;
    std::swap(transposed.addend.row_stride, transposed.addend.column_stride);
    const Result row{c.data, c.dtype, a.rows};
    return MultiplyAny(dtype, b.Transposed(), dtype, a.Transposed(), nullptr, StoredAs(dtype), row, transposed, {});
  }
  MultiplyAny(dtype, a, dtype, b, nullptr, StoredAs(dtype), c, epilogue, {});
}

void Multiply(DType dtype, const Matrix& a, DType b_dtype, const Matrix& b, const Result& c, const Epilogue& epilogue,
              const Dequantization& dequantization) {
  MultiplyAny(dtype, a, b_dtype, b, nullptr, StoredAs(b_dtype), c, epilogue, dequantization);
}

}  // namespace npu::gemm
