// npu_quantize(self, scales, zero_points; dtype, axis, div_mode) -> y. The semantics are in npu_quantize.py.
#include "contrib_ops/quant/npu_quantize.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUQuantize::In;
using Out = nodes::NPUQuantize::Out;

constexpr const char* kOp = "npu_quantize";

// self seen as [outer, channels, inner], one scale for each channel.
struct Channels {
  int64_t outer, channels, inner;
};

// The axis may count from the end and lie outside of the rank.
bool IsAlong(const Shape& scales, const Shape& self, int64_t axis) {
  const int rank = self.rank();
  if (axis < -rank || axis >= rank) return false;
  const int64_t from_end = axis < 0 ? -axis : rank - axis, size = self[static_cast<int>(rank - from_end)];
  if (scales.rank() == 1) return scales[0] == size;
  if (scales.rank() < from_end || scales.rank() > rank) return false;
  for (int i = 0; i < scales.rank(); ++i)
    if (scales[i] != (scales.rank() - i == from_end ? size : 1)) return false;
  return true;
}

class QuantizeKernel final : public Kernel {
 public:
  explicit QuantizeKernel(const KernelInfo& info)
      : type_(QuantizedTypeOf(kOp, "dtype", info.attributes.Int("dtype"),
                              {{TypeCode::kInt8, QuantizedType::kInt8},
                               {TypeCode::kUInt8, QuantizedType::kUInt8},
                               {TypeCode::kInt32, QuantizedType::kInt32},
                               {TypeCode::kInt4, QuantizedType::kInt4}})),
        axis_(info.attributes.Int("axis")),
        divides_(info.attributes.Bool("div_mode")) {
    NPU_OP_CHECK(kOp, divides_ || axis_ >= -2, "expected axis >= -2 with div_mode False, got ", axis_);
    if (!divides_ && axis_ != -2) axis_ = -1;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(In::self), scales = ctx.Input(In::scales);
    const TensorView zero_points = ctx.Input(In::zero_points);
    NPU_OP_CHECK(kOp, self && scales, "expected the tensors self and scales");
    const Channels c = Check(self.shape, scales.shape);
    NPU_OP_CHECK(kOp, !zero_points || zero_points.shape == scales.shape, "expected zero_points of scales' shape ",
                 scales.shape, ", got ", zero_points.shape);
    const Shape stored = StoredShape(kOp, "self", self.shape, type_);
    const TensorView y = ctx.Output(Out::y, StorageOf(type_), stored);
    if (self.elements() == 0) return;
    auto* floats = static_cast<float*>(ctx.Workspace(static_cast<size_t>(2 * c.channels) * sizeof(float)));
    const auto how = divides_ ? QuantizeBy::kDivision : QuantizeBy::kMultiplicationRoundedAtEnd;
    ctx.Launch(kOp, [self, scales, zero_points, c, floats, how, type = type_, out = y.data] {
      float *scale = floats, *offset = floats + c.channels;
      ConvertToFloats(scales, scale);
      if (zero_points) {
        ConvertToFloats(zero_points, offset);
      } else {
        std::fill_n(offset, c.channels, 0.0f);
      }
      const bool per_column = c.inner == 1 && c.channels != 1;
      const int64_t rows = per_column ? c.outer : c.outer * c.channels;
      const int64_t length = per_column ? c.channels : c.inner;
      ForEachPiece(rows, length, [&](int64_t row, int64_t begin, int64_t count) {
        const int64_t channel = per_column ? 0 : row % c.channels;
        QuantizePiece(how, type, self, row, length, begin, count, {scale + channel, per_column},
                      {offset + channel, per_column}, out);
      });
    });
  }

 private:
  Channels Check(const Shape& self, const Shape& scales) const {
    if (scales.Elements() == 1) return {1, 1, self.Elements()};
    NPU_OP_CHECK(kOp, IsAlong(scales, self, axis_), "expected scales of one value, or one for each of axis ", axis_,
                 " of self ", self, ", got ", scales);
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + self.rank() : axis_);
    return {self.Elements(0, axis), self[axis], self.Elements(axis + 1, self.rank())};
  }

  QuantizedType type_;
  int64_t axis_;
  bool divides_;
};

NPU_KERNEL(NPUQuantize, QuantizeKernel);

}  // namespace
}  // namespace npu
