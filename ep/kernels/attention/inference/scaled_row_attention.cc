// ScaledRowAttention (npu.fused): attention to the pages of a cache of int8 whose rows end with their scales, as
// ScaledRows writes them. The exporter makes it of slices of the cache and npu_fused_infer_attention_score. Latents are
// keys and values; the rotated columns beside them are floats, in pages of their own.
#include "ep/kernels/attention/inference/call.h"
#include "ep/kernels/attention/inference/paged_rows.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using attention::InferenceInputs;
using attention::InferenceLauncher;

constexpr const char* kOp = "ScaledRowAttention";

enum In { kQuery, kKeys, kValues, kMask, kQueryEnds, kKeyLengths, kTable, kQueryRope, kKeyRope };

class ScaledRowAttentionKernel final : public Kernel {
 public:
  explicit ScaledRowAttentionKernel(const KernelInfo& info)
      : launcher_(info, attention::PagedRowAttributes(kOp, info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    InferenceInputs in;
    in.query = ctx.Input(kQuery);
    in.key = Pages("keys", ctx.Input(kKeys));
    in.value = Pages("values", ctx.Input(kValues));
    in.atten_mask = ctx.Input(kMask);
    in.lengths = ctx.Input(kQueryEnds);
    in.key_lengths = ctx.Input(kKeyLengths);
    in.block_table = ctx.Input(kTable);
    in.scaled_rows = true;
    in.query_rope = ctx.Input(kQueryRope);
    if (const TensorView columns = ctx.Input(kKeyRope)) in.key_rope = Pages("key_rope", columns, "columns");
    launcher_.Launch(ctx, std::move(in), [&ctx](DType dtype, const attention::InferenceCall& call) {
      return InferenceLauncher::Outputs{ctx.Output(0, dtype, call.OutputShape()), {}};
    });
  }

 private:
  // [pages, page rows, heads, row], as attention takes pages.
  TensorView Pages(const char* name, TensorView cache, const char* row = "bytes") const {
    const Shape& shape = cache.shape;
    NPU_OP_CHECK(kOp, cache && shape.rank() == 4 && shape[2] == launcher_.attributes().key_heads, "expected ", name,
                 " of shape [pages, page rows, ", launcher_.attributes().key_heads, ", ", row, "], got ", shape);
    cache.shape = {shape[0], shape[1], shape[2] * shape[3]};
    return cache;
  }

  InferenceLauncher launcher_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("query", kFloats), Input("keys", {DType::kInt8}), Input("values", {DType::kInt8}),
               Input("atten_mask", {DType::kBool}), attention::LateLengths("query_ends"),
               attention::LateLengths("key_lengths"), Input("block_table", {DType::kInt32}),
               OptionalInput("query_rope", kFloats), OptionalInput("key_rope", kFloats)},
    .outputs = {Output("attended", kFloats)},
    .attributes = {RequiredInt("num_heads"), RequiredInt("num_key_value_heads"), FloatAttribute("scale", 1.0),
                   RequiredInt("block_size"), IntAttribute("sparse_mode", 3), IntAttribute("pre_tokens", INT32_MAX),
                   IntAttribute("next_tokens", INT32_MAX)},
    .make = MakeKernel<ScaledRowAttentionKernel>,
});

}  // namespace
}  // namespace npu
