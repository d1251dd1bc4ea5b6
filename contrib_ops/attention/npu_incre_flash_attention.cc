// npu_incre_flash_attention: inference attention of one query row per sequence. The semantics are in
// npu_incre_flash_attention.py.
#include "contrib_ops/attention/npu_incre_flash_attention.h"

#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUIncreFlashAttention::In;

using attention::InferenceAttributes;
using attention::InferenceInputs;
using attention::InferenceKernel;

constexpr const char* kOp = "npu_incre_flash_attention";

InferenceAttributes Read(const Attributes& a) {
  InferenceAttributes r(kOp, a, "scale_value");
  r.layouts = {"BSH", "BSND", "BNSD"};
  r.sparse_mode = 1;
  r.block_size = a.Int("block_size");
  r.decode = InferenceAttributes::Decode::kAlways;
  r.key_lengths_name = "actual_seq_lengths";
  return r;
}

InferenceInputs ReadInputs(OpContext& ctx) {
  InferenceInputs in = attention::ReadCommonInputs<In>(ctx);
  in.padding_mask = ctx.Input(In::padding_mask);
  in.key_lengths = ctx.Input(In::actual_seq_lengths);
  in.dequant_scale1 = ctx.Input(In::dequant_scale1);
  in.dequant_scale2 = ctx.Input(In::dequant_scale2);
  in.antiquant_scale = ctx.Input(In::antiquant_scale);
  in.antiquant_offset = ctx.Input(In::antiquant_offset);
  in.block_table = ctx.Input(In::block_table);
  in.kv_padding_size = ctx.Input(In::kv_padding_size);
  return in;
}

class IncreFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit IncreFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(info, Read(info.attributes), ReadInputs) {}
};

NPU_KERNEL(NPUIncreFlashAttention, IncreFlashAttentionKernel);

}  // namespace
}  // namespace npu
