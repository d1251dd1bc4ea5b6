// RotaryEmbedding (ai.onnx 23): rotates pairs of the first columns of each head, with cosines and sines of each token
// or of a table of positions. Computed in float and rounded once.
#include <optional>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotary_task.h"

namespace npu {
namespace {

constexpr const char* kOp = "RotaryEmbedding";

class RotaryEmbeddingKernel final : public Kernel {
 public:
  explicit RotaryEmbeddingKernel(const KernelInfo& info)
      : interleaved_(info.attributes.Bool("interleaved")), rotated_(info.attributes.Int("rotary_embedding_dim")) {
    if (info.attributes.Has("num_heads")) heads_ = info.attributes.Int("num_heads");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), cosines = ctx.Input(1), sines = ctx.Input(2), positions = ctx.Input(3);
    const Heads in = HeadsOf(x.shape);
    const int64_t rotated = rotated_ == 0 ? in.size : rotated_;
    NPU_OP_CHECK(kOp, rotated > 0 && rotated <= in.size && rotated % 2 == 0,
                 "expected rotary_embedding_dim to be even and at most the head size ", in.size, ", got ", rotated);
    NPU_OP_CHECK(kOp, cosines.shape == sines.shape && cosines.dtype == x.dtype && sines.dtype == x.dtype,
                 "expected cos_cache and sin_cache of one shape and of X's type, got ", cosines.shape, " and ",
                 sines.shape);
    const Shape& table = cosines.shape;
    if (positions) {
      NPU_OP_CHECK(kOp, positions.shape == (Shape{in.batch, in.rows}), "expected position_ids of shape ",
                   (Shape{in.batch, in.rows}), ", got ", positions.shape);
      NPU_OP_CHECK(kOp, table.rank() == 2 && table[1] == rotated / 2, "expected tables [positions, ", rotated / 2,
                   "], got ", table);
    } else {
      // One table may be for all entries of the batch: torch.onnx writes that, and ONNX's reference multiplies so.
      const Shape wanted{in.batch, in.rows, rotated / 2}, shared{1, in.rows, rotated / 2};
      NPU_OP_CHECK(kOp, table == wanted || table == shared, "expected tables of shape ", wanted,
                   " without position_ids, got ", table);
    }
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    const RotaryTask task{kOp,
                          x,
                          cosines,
                          sines,
                          y,
                          in,
                          in,
                          rotated,
                          interleaved_,
                          positions.as<const int64_t>(),
                          positions ? table[0] : table.Elements(0, 2)};
    DispatchFloats(kOp, x.dtype, [&](auto type) { ctx.Launch(kOp, [task] { task.Run<decltype(type)>(); }); });
  }

 private:
  Heads HeadsOf(const Shape& x) const {
    NPU_OP_CHECK(kOp, x.rank() == 3 || x.rank() == 4, "expected X [B, N, S, D] or [B, S, N * D], got shape ", x);
    if (x.rank() == 4) return Heads::Separate(x[0], x[1], x[2], x[3]);
    NPU_OP_CHECK(kOp, heads_ && *heads_ > 0 && x[2] % *heads_ == 0,
                 "expected num_heads that divides the last dimension of X ", x, ", got ", heads_.value_or(0));
    return Heads::Joined(x[0], *heads_, x[1], x[2] / *heads_);
  }

  bool interleaved_;
  int64_t rotated_;
  std::optional<int64_t> heads_;
};

NPU_ONNX_KERNEL({
    .type = "RotaryEmbedding",
    .since = 23,
    .until = 23,
    .inputs = {Input("X", kFloats), Input("cos_cache", kFloats), Input("sin_cache", kFloats),
               OptionalInput("position_ids", {DType::kInt64})},
    .outputs = {Output("Y", kFloats)},
    .attributes = {IntAttribute("interleaved", 0), IntAttribute("rotary_embedding_dim", 0), IntAttribute("num_heads")},
    .make = MakeKernel<RotaryEmbeddingKernel>,
});

}  // namespace
}  // namespace npu
