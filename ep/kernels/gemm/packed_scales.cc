#include "ep/kernels/gemm/packed_scales.h"

#include <algorithm>

#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/device.h"

namespace npu::gemm {

namespace {

// Columns [first, first + count) of all groups, kPanelColumns apart; zeros up to `room` columns.
template <class Bits>
void PackColumns(const Matrix& values, int64_t first, int64_t count, int64_t room, Bits* out) {
  const auto* from = static_cast<const Bits*>(values.data);
  for (int64_t g = 0; g < values.rows; ++g, out += kPanelColumns) {
    for (int64_t i = 0; i < count; ++i) out[i] = from[values.Offset(g, first + i)];
    std::fill(out + count, out + room, Bits{0});
  }
}

template <class Bits>
void PackPanels(const Matrix& values, bool gated, Bits* out) {
  const int64_t room = gated ? kLanes : kPanelColumns, columns = gated ? values.columns / 2 : values.columns;
  for (int64_t first = 0; first < columns; first += room, out += values.rows * kPanelColumns) {
    const int64_t count = std::min(room, columns - first);
    PackColumns(values, first, count, room, out);
    if (gated) PackColumns(values, columns + first, count, room, out + kLanes);
  }
}

}  // namespace

PackedScales::~PackedScales() {
  if (packed_) allocator_->Free(packed_.data);
}

void PackedScales::Pack(const char* op, DType dtype, const Matrix& values, Stream& stream) {
  Pack(op, dtype, values, /*gated=*/false, stream);
}

void PackedScales::PackGated(const char* op, DType dtype, const Matrix& values, Stream& stream) {
  Pack(op, dtype, values, /*gated=*/true, stream);
}

void PackedScales::Pack(const char* op, DType dtype, const Matrix& values, bool gated, Stream& stream) {
  NPU_OP_CHECK(op, !packed_, "expected constant scales once, got them twice");
  NPU_OP_CHECK(op, kFloats.Contains(dtype), "expected scales of a float type, got ", NameOf(dtype));
  allocator_ = &stream.device().allocator();
  const int64_t columns = gated ? GatedColumns(values.columns) : values.columns;
  const int64_t elements = PanelCount(columns) * values.rows * kPanelColumns;
  void* const data = allocator_->Allocate(static_cast<size_t>(BytesFor(dtype, elements)), stream);
  packed_.data = data;
  packed_.dtype = dtype;
  packed_.shape = {values.rows, values.columns};
  packed_.present = true;
  const bool halves = BytesFor(dtype, 1) == 2;
  stream.Launch(op, [=] {
    if (halves) {
      PackPanels(values, gated, static_cast<uint16_t*>(data));
    } else {
      PackPanels(values, gated, static_cast<uint32_t*>(data));
    }
  });
  stream.Synchronize();
}

int64_t PackedScales::panel() const { return packed_ ? packed_.shape[0] * kPanelColumns : 0; }

}  // namespace npu::gemm
