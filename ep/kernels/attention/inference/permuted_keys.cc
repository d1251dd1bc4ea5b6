// Attention (npu.fused) of [B, N, S, D] whose keys have their axes in another order: `key_perm` names, for each axis of
// K, that of the input. What a fusion rule of the provider makes where onnxruntime has joined the transpositions of the
// keys, so that none of their values is [B, N, S, D].
#include <memory>
#include <vector>

#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/onnx_step.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "Attention";
constexpr int kRank = 4;

class PermutedKeys final : public Kernel {
 public:
  explicit PermutedKeys(const KernelInfo& info) : perm_(info.attributes.Ints("key_perm")) {
    KernelInfo plain = info;
    plain.since_version = 23;
    plain.input_shapes.clear();  // of other keys
    attention_ = OpRegistry::Instance().Find("", kOp, 23)->make(plain);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView given = ctx.Input(1);
    NPU_OP_CHECK(kOp, given.shape.rank() == kRank, "expected keys of four dimensions, got shape ", given.shape);
    const auto strides = DenseStrides(given.shape);
    TensorView keys = given;
    keys.shape = {};
    std::array<int64_t, Shape::kMaxRank> permuted{};
    for (size_t d = 0; d < kRank; ++d) {
      keys.shape.push_back(given.shape[static_cast<int>(perm_[d])]);
      permuted[d] = strides[static_cast<size_t>(perm_[d])];
    }
    keys.data = ctx.Workspace(given.bytes());
    LaunchStridedCopy(ctx, kOp, keys.shape, permuted, BytesFor(keys.dtype, 1), keys.data, given.data);
    StepContext inputs(ctx, {ctx.Input(0), keys, ctx.Input(2), ctx.Input(3)}, StepContext::Result(ctx));
    attention_->Compute(inputs);
  }

 private:
  std::vector<int64_t> perm_;
  std::unique_ptr<Kernel> attention_;
};

std::string WhyNot(const NodeView& node) {
  const std::vector<int64_t> perm = node.attributes.Ints("key_perm");
  bool seen[kRank] = {};
  for (const int64_t axis : perm)
    if (axis >= 0 && axis < kRank) seen[axis] = true;
  if (perm.size() != kRank || !(seen[0] && seen[1] && seen[2] && seen[3])) return "key_perm is no order of four axes";
  return OpRegistry::Instance().Find("", kOp, 23)->unsupported(node);
}

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("Q", kFloats), Input("K", kFloats), Input("V", kFloats),
               OptionalInput("attn_mask", kFloats | DTypeSet{DType::kBool})},
    .outputs = {Output("Y", kFloats)},
    .attributes = {FloatAttribute("scale"), IntAttribute("is_causal", 0), FloatAttribute("softcap", 0.0),
                   IntAttribute("qk_matmul_output_mode", 0), IntsAttribute("key_perm")},
    .make = MakeKernel<PermutedKeys>,
    .unsupported = WhyNot,
});

}  // namespace
}  // namespace npu
