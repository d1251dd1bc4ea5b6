#include "ep/kernels/gemm/packed_scales.h"

#include <algorithm>

#include "ep/kernels/gemm/packing.h"
#include "ep/runtime/device.h"

namespace npu::gemm {

namespace {

template <class Bits>
void PackPanels(const Matrix& values, Bits* out) {
  const auto* from = static_cast<const Bits*>(values.data);
  for (int64_t n0 = 0; n0 < values.columns; n0 += kPanelColumns) {
    const int64_t count = std::min<int64_t>(kPanelColumns, values.columns - n0);
    for (int64_t g = 0; g < values.rows; ++g, out += kPanelColumns) {
      for (int64_t i = 0; i < count; ++i) out[i] = from[values.Offset(g, n0 + i)];
      std::fill(out + count, out + kPanelColumns, Bits{0});
    }
  }
}

}  // namespace

PackedScales::~PackedScales() {
  if (packed_) allocator_->Free(packed_.data);
}

void PackedScales::Pack(const char* op, DType dtype, const Matrix& values, Stream& stream) {
  NPU_CHECK(!packed_, "[", op, "] expected constant scales once, got them twice");
  NPU_CHECK(kFloats.Contains(dtype), "[", op, "] expected scales of a float type, got ", NameOf(dtype));
  allocator_ = &stream.device().allocator();
  const int64_t elements = PanelCount(values.columns) * values.rows * kPanelColumns;
  void* const data = allocator_->Allocate(static_cast<size_t>(BytesFor(dtype, elements)), stream);
  packed_.data = data;
  packed_.dtype = dtype;
  packed_.shape = {values.rows, values.columns};
  packed_.present = true;
  const bool halves = BytesFor(dtype, 1) == 2;
  stream.Launch(op, [=] {
    if (halves) {
      PackPanels(values, static_cast<uint16_t*>(data));
    } else {
      PackPanels(values, static_cast<uint32_t*>(data));
    }
  });
  stream.Synchronize();
}

int64_t PackedScales::panel() const { return packed_ ? packed_.shape[0] * kPanelColumns : 0; }

}  // namespace npu::gemm
