#include "ep/kernels/gemm/packed_weight.h"

#include <cstddef>
#include <vector>

#include "ep/kernels/gemm/shared_panels.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/device.h"
#include "ep/runtime/packed_blocks.h"

namespace npu::gemm {

PackedWeight::~PackedWeight() {
  if (allocator_ && data_) ReleasePanels(*allocator_, data_);
}

void PackedWeight::PackInto(const char* op, size_t bytes, const std::function<void(void*)>& pack, Stream& stream) {
  NPU_OP_CHECK(op, !packed_, "expected one constant weight, got a second");
  PackedBlocks* blocks = bytes > 0 ? CurrentPackedBlocks() : nullptr;
  if (blocks) taken_ = blocks->Take(bytes);
  if (taken_) {
    data_ = const_cast<void*>(taken_.get());  // only read from now on
  } else if (bytes > 0) {
    allocator_ = &stream.device().allocator();
    data_ = allocator_->Allocate(bytes, stream);
    stream.Launch(op, [this, pack, bytes] {
      pack(data_);
      data_ = SharePanels(*allocator_, data_, bytes);
    });
    if (!blocks) {
      stream.Synchronize();
    } else {
      std::vector<std::byte> host(bytes);
      stream.Copy(host.data(), data_, bytes, CopyKind::kDeviceToHost);
      stream.Synchronize();
      blocks->Packed(host.data(), bytes);
    }
  }
  packed_ = true;
}

void PackedWeight::Pack(const char* op, DType dtype, const Matrix& b, Stream& stream) {
  Pack(op, dtype, b.rows, b.columns, [&b] { return b; }, stream);
}

void PackedWeight::Pack(const char* op, DType dtype, int64_t k, int64_t n, const std::function<Matrix()>& b,
                        Stream& stream) {
  const DType stored = StoredAs(dtype);
  PackInto(op, PackedBytes(stored, k, n), [=](void* to) { gemm::Pack(dtype, b(), to, stored); }, stream);
  dtype_ = dtype;
  stored_ = stored;
}

void PackedWeight::Pack(const char* op, const TensorView& b, Stream& stream) {
  NPU_OP_CHECK(op, b.shape.rank() == 2, "expected a matrix B, got ", b.shape);
  Pack(op, b.dtype, Matrix::RowMajor(b.data, b.shape[0], b.shape[1]), stream);
}

void PackedWeight::PackGated(const char* op, DType dtype, const Matrix& b, Stream& stream) {
  const DType stored = StoredAs(dtype);
  const size_t bytes = PackedBytes(stored, b.rows, GatedColumns(b.columns));
  PackInto(op, bytes, [=](void* to) { gemm::PackGated(dtype, b, to, stored); }, stream);
  dtype_ = dtype;
  stored_ = stored;
}

void PackedWeight::PackQuantized(const char* op, DType dtype, const Matrix& b, Stream& stream) {
  PackInto(op, QuantizedBytes(dtype, b.rows, b.columns), [=](void* to) { gemm::PackQuantized(dtype, b, to); }, stream);
  dtype_ = stored_ = dtype;
}

void PackedWeight::PackQuantizedGated(const char* op, DType dtype, const Matrix& b, Stream& stream) {
  const size_t bytes = QuantizedBytes(dtype, b.rows, GatedColumns(b.columns));
  PackInto(op, bytes, [=](void* to) { gemm::PackQuantizedGated(dtype, b, to); }, stream);
  dtype_ = stored_ = dtype;
}

SharedMatrixReader::Panels PackedWeight::PanelsOf(const TensorView& rows) const {
  using Panels = SharedMatrixReader::Panels;
  if (rows.shape.rank() != 2 || StoredAs(rows.dtype) != rows.dtype) return Panels::kNo;
  return PacksInPlace(rows.dtype, rows.shape[1], rows.shape[0]) ? Panels::kWanted : Panels::kNo;
}

void PackedWeight::UsePanels(const char* op, const TensorView& rows, bool reorder, Stream& stream) {
  if (reorder) PackInPlace(op, rows, stream);
  dtype_ = stored_ = rows.dtype;
  in_place_ = true;
}

void PackInPlace(const char* op, const TensorView& rows, Stream& stream) {
  stream.Launch(op, [rows] { PackInPlace(rows.dtype, rows.data, rows.shape[1], rows.shape[0]); });
  stream.Synchronize();
}

}  // namespace npu::gemm
