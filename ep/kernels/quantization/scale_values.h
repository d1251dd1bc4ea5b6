// Scales, and other values per column, of any type that an operator takes, as the floats that an epilogue reads.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/float_block.h"
#include "ep/kernels/quantization/packed_scale.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// What a packed scale is read for.
enum class PackedPart { kScale, kOffset };

// float32 is read where it is; floats of other types, int32 and the parts of 64-bit words are converted in the launch.
class ScaleValues {
 public:
  ScaleValues() = default;
  ScaleValues(OpContext& ctx, const TensorView& given, PackedPart part = PackedPart::kScale)
      : given_(given), part_(part) {
    if (given && given.dtype != DType::kFloat32)
      converted_ = static_cast<float*>(ctx.Workspace(static_cast<size_t>(given.elements()) * sizeof(float)));
  }

  // In the launch, before the values are read.
  void Load() const {
    if (!converted_) return;
    if (given_.dtype != DType::kInt64 && given_.dtype != DType::kUInt64) return ConvertToFloats(given_, converted_);
    const int64_t* words = given_.as<const int64_t>();
    for (int64_t i = 0; i < given_.elements(); ++i)
      converted_[i] = part_ == PackedPart::kScale ? UnpackScale(words[i]) : static_cast<float>(UnpackOffset(words[i]));
  }

  const float* data() const { return converted_ ? converted_ : given_.as<const float>(); }
  int64_t elements() const { return given_.elements(); }
  // Between columns: 0 of a single value.
  int64_t stride() const { return given_.elements() == 1 ? 0 : 1; }

 private:
  TensorView given_;
  PackedPart part_ = PackedPart::kScale;
  float* converted_ = nullptr;
};

// Throws "[op] expected …, got …" unless `values`, if present, are one for all columns or one for each.
inline void CheckPerColumn(const char* op, const char* name, const TensorView& values, int64_t columns) {
  if (!values) return;
  const Shape& shape = values.shape;
  const bool fits =
      (shape.rank() == 1 || (shape.rank() == 2 && shape[0] == 1)) && (shape.back() == 1 || shape.back() == columns);
  NPU_OP_CHECK(op, fits, "expected ", name, " of shape [1], [", columns, "] or [1, ", columns, "], got ", shape);
}

}  // namespace npu
