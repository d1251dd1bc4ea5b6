// The constant scales or offsets of a quantised weight in the order in which its panels are read, in device memory. In
// rows [groups, N] the values of one panel are as far apart as rows are long, in rows [N, groups] each is converted by
// itself: either takes a cache line, and a page, for few values.
#pragma once

#include "ep/kernels/gemm/gemm.h"

namespace npu {
class CachingAllocator;
}

namespace npu::gemm {

class PackedScales {
 public:
  PackedScales() = default;
  ~PackedScales();
  PackedScales(const PackedScales&) = delete;
  PackedScales& operator=(const PackedScales&) = delete;

  // Packs values [groups, N] of a float type after the work already queued on `stream`, and waits. `op` names the
  // operator in errors.
  void Pack(const char* op, DType dtype, const Matrix& values, Stream& stream);
  // The same for a weight that is packed by PackQuantizedGated.
  void PackGated(const char* op, DType dtype, const Matrix& values, Stream& stream);

  // True if this holds a copy, so that the values themselves are not needed.
  explicit operator bool() const { return static_cast<bool>(packed_); }
  // The copy with the type and shape [groups, N] of what was packed: panel after panel, the groups of a panel side by
  // side.
  const TensorView& values() const { return packed_; }
  // Elements of a panel, for Dequantization; 0: nothing is packed.
  int64_t panel() const;

 private:
  void Pack(const char* op, DType dtype, const Matrix& values, bool gated, Stream& stream);

  CachingAllocator* allocator_ = nullptr;
  TensorView packed_;
};

}  // namespace npu::gemm
