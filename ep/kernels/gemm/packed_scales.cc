#include "ep/kernels/gemm/packed_scales.h"

#include <algorithm>

#include "ep/kernels/gemm/packing.h"
#include "ep/runtime/device.h"

namespace npu::gemm {

namespace {

void PackPanels(const TensorView& values, uint16_t* out) {
  const int64_t groups = values.shape[0], columns = values.shape[1];
  const auto* rows = values.as<const uint16_t>();
  for (int64_t n0 = 0; n0 < columns; n0 += kPanelColumns) {
    const int64_t count = std::min<int64_t>(kPanelColumns, columns - n0);
    for (int64_t g = 0; g < groups; ++g, out += kPanelColumns) {
      std::copy_n(rows + g * columns + n0, count, out);
      std::fill(out + count, out + kPanelColumns, uint16_t{0});
    }
  }
}

}  // namespace

PackedScales::~PackedScales() {
  if (packed_) allocator_->Free(packed_.data);
}

void PackedScales::Pack(const char* op, const TensorView& values, Stream& stream) {
  NPU_CHECK(!packed_, "[", op, "] expected constant scales once, got them twice");
  NPU_CHECK(values.shape.rank() == 2 && BytesFor(values.dtype, 1) == 2, "[", op,
            "] expected scales [groups, N] of 16 bits, got ", NameOf(values.dtype), " ", values.shape);
  TensorView packed = values;
  allocator_ = &stream.device().allocator();
  const int64_t elements = PanelCount(values.shape[1]) * values.shape[0] * kPanelColumns;
  packed.data = allocator_->Allocate(static_cast<size_t>(BytesFor(values.dtype, elements)), stream);
  packed_ = packed;
  stream.Launch(op, [values, packed] { PackPanels(values, packed.as<uint16_t>()); });
  stream.Synchronize();
}

int64_t PackedScales::panel() const { return packed_ ? packed_.shape[0] * kPanelColumns : 0; }

}  // namespace npu::gemm
