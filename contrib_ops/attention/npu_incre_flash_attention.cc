// npu_incre_flash_attention: inference attention of one query row per sequence. The semantics are in
// npu_incre_flash_attention.py.
#include "ep/kernels/attention/inference/inference.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using attention::InferenceAttributes;
using In = attention::InferenceInputs;
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

class IncreFlashAttentionKernel final : public InferenceKernel {
 public:
  explicit IncreFlashAttentionKernel(const KernelInfo& info)
      : InferenceKernel(
            info, Read(info.attributes),
            {&In::query, &In::key, &In::value, &In::padding_mask, &In::atten_mask, &In::pse_shift, &In::key_lengths,
             &In::antiquant_scale, &In::antiquant_offset, &In::block_table, &In::dequant_scale1, &In::quant_scale1,
             &In::dequant_scale2, &In::quant_scale2, &In::quant_offset2, &In::kv_padding_size}) {}
};

NPU_KERNEL(NPUIncreFlashAttention, IncreFlashAttentionKernel);

}  // namespace
}  // namespace npu
