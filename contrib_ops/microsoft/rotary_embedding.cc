// RotaryEmbedding of com.microsoft: like ONNX's, whose heads and positions are given otherwise.
#include <string>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotary_task.h"

namespace npu {
namespace {

constexpr const char* kOp = "RotaryEmbedding";

class RotaryKernel final : public Kernel {
 public:
  explicit RotaryKernel(const KernelInfo& info)
      : interleaved_(info.attributes.Bool("interleaved")),
        heads_(info.attributes.Int("num_heads")),
        rotated_(info.attributes.Int("rotary_embedding_dim")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), positions = ctx.Input(1), cosines = ctx.Input(2), sines = ctx.Input(3);
    const Shape& table = cosines.shape;
    NPU_OP_CHECK(kOp, table.rank() == 2 && sines.shape == table && cosines.dtype == x.dtype && sines.dtype == x.dtype,
                 "expected cos_cache and sin_cache [positions, half the rotated columns] of the input's type, got ",
                 NameOf(cosines.dtype), " ", table, " and ", NameOf(sines.dtype), " ", sines.shape);
    const int64_t rotated = 2 * table[1];
    const Heads in = HeadsOf(x.shape, rotated);
    NPU_OP_CHECK(kOp, rotated > 0 && rotated <= in.size && (rotated_ == 0 || rotated_ == rotated),
                 "expected tables of half of rotary_embedding_dim ", rotated_, " columns, of a head of ", in.size,
                 ", got ", table);
    const bool offset = positions.elements() == 1 && positions.shape.rank() <= 1;
    const Shape wanted{in.batch, in.rows};
    NPU_OP_CHECK(kOp, offset || positions.shape == wanted, "expected position_ids of shape [1] or ", wanted, ", got ",
                 positions.shape);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    RotaryTask task{kOp, x, cosines, sines, y, in, in, rotated, interleaved_, positions.as<const int64_t>(), table[0]};
    const int64_t tokens = in.batch * in.rows;
    auto* counted = offset ? static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, tokens))) : nullptr;
    DispatchFloats(kOp, x.dtype, [&](auto type) {
      ctx.Launch(kOp, [task, counted, tokens]() mutable {
        if (counted != nullptr) {
          const int64_t first = task.positions[0];
          NPU_OP_CHECK(kOp, first >= 0 && first <= task.table_rows, "expected a position from 0 to ", task.table_rows,
                       ", got ", first);
          for (int64_t i = 0; i < tokens; ++i) counted[i] = first + i % task.in.rows;
          task.positions = counted;
        }
        task.Run<decltype(type)>();
      });
    });
  }

 private:
  Heads HeadsOf(const Shape& x, int64_t rotated) const {
    NPU_OP_CHECK(kOp, x.rank() == 3 || x.rank() == 4, "expected an input [B, S, N * D] or [B, N, S, D], got shape ", x);
    if (x.rank() == 4) return Heads::Separate(x[0], x[1], x[2], x[3]);
    // All columns of a head are rotated unless the node gives the number of heads.
    const int64_t size = heads_ > 0 ? x[2] / heads_ : rotated;
    NPU_OP_CHECK(kOp, size > 0 && x[2] % size == 0 && (heads_ <= 0 || x[2] == heads_ * size),
                 "expected heads that divide the last dimension of the input ", x, ", got num_heads ", heads_);
    return Heads::Joined(x[0], x[2] / size, x[1], size);
  }

  bool interleaved_;
  int64_t heads_, rotated_;  // 0: see HeadsOf; the tables' width
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input", kFloats), Input("position_ids", {DType::kInt64}), Input("cos_cache", kFloats),
               Input("sin_cache", kFloats)},
    .outputs = {Output("output", kFloats)},
    .attributes = {IntAttribute("interleaved", 0), IntAttribute("num_heads", 0),
                   IntAttribute("rotary_embedding_dim", 0), IntAttribute("is_packed_batching", 0),
                   FloatAttribute("scale", 1.0)},
    .make = MakeKernel<RotaryKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      if (node.attributes.Float("scale") != 1.0) return "RotaryEmbedding with a scale is not implemented";
      return "";
    },
}));

}  // namespace
}  // namespace npu
