// npu_group_quant(x, scale, group_index, offset; dst_type) -> y. The semantics are in npu_group_quant.py.
#include "contrib_ops/quant/npu_group_quant.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/groups.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUGroupQuant::In;
using Out = nodes::NPUGroupQuant::Out;

constexpr const char* kOp = "npu_group_quant";

class GroupQuantKernel final : public Kernel {
 public:
  explicit GroupQuantKernel(const KernelInfo& info) {
    if (!info.attributes.Has("dst_type")) return;
    type_ = QuantizedTypeOf(kOp, "dst_type", info.attributes.Int("dst_type"),
                            {{TypeCode::kInt8, QuantizedType::kInt8}, {TypeCode::kInt4, QuantizedType::kInt4}});
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), scale = ctx.Input(In::scale), ends = ctx.Input(In::group_index);
    const TensorView offset = ctx.Input(In::offset);
    NPU_OP_CHECK(kOp, x && scale && ends, "expected the tensors x, scale and group_index");
    NPU_OP_CHECK(kOp, x.shape.rank() == 2, "expected x [S, H], got ", x.shape);
    const int64_t rows = x.shape[0], columns = x.shape[1];
    NPU_OP_CHECK(kOp, scale.shape.rank() == 2 && scale.shape[0] > 0 && scale.shape[1] == columns, "expected scale [E, ",
                 columns, "] with E > 0, got ", scale.shape);
    const int64_t groups = scale.shape[0];
    NPU_OP_CHECK(kOp, ends.shape == Shape{groups}, "expected group_index [", groups, "], got ", ends.shape);
    NPU_OP_CHECK(kOp, !offset || (offset.shape.rank() <= 1 && offset.elements() == 1),
                 "expected offset of one value, got ", offset.shape);
    const TensorView y = ctx.Output(Out::y, StorageOf(type_), StoredShape(kOp, "x", x.shape, type_));
    auto* checked = static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(groups) * sizeof(int64_t)));
    ctx.Launch(kOp, [x, scale, ends, offset, rows, columns, groups, checked, type = type_, out = y.as<char>()] {
      CheckGroups(kOp, ends, rows, checked);
      if (columns == 0) return;
      float shift = 0.0f;
      if (offset) ConvertToFloats(offset, &shift);
      ForEachPiece(rows, columns, [&](int64_t row, int64_t begin, int64_t count) {
        FloatBlock values, scales;
        const int64_t at = row * columns + begin, scales_at = GroupOf(checked, groups, row) * columns + begin;
        ForEachBlock(count, [&](int64_t from, int64_t n) {
          QuantizeBlock(QuantizeBy::kMultiplicationRoundedAtEnd, type, values.Load(x, at + from, n),
                        {scales.Load(scale, scales_at + from, n), true}, {&shift, false},
                        out + BytesOf(type, at + from), n);
        });
      });
    });
  }

 private:
  QuantizedType type_ = QuantizedType::kInt8;
};

NPU_KERNEL(NPUGroupQuant, GroupQuantKernel);

}  // namespace
}  // namespace npu
