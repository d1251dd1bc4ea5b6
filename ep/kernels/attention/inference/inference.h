// What the inference operators share: arguments are checked and turned into a Problem. Each operator says which of them
// it has, and what it calls them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ep/kernels/attention/core/layout.h"
#include "ep/runtime/kernel_api.h"

namespace npu::attention {

struct InferenceAttributes {
  InferenceAttributes() = default;
  // Reads the attributes that every operator has under the same name; `scale_name` differs.
  InferenceAttributes(const char* op, const Attributes& given, const char* scale_name);

  const char* op = "";
  std::string layout;
  std::vector<const char*> layouts;  // those that the operator accepts
  int64_t heads = 1, key_heads = 0;
  float scale = 1.0f;
  int64_t pre_tokens = 0, next_tokens = 0;
  int64_t sparse_mode = 0, block_size = 0;
  int64_t antiquant_mode = 0, key_antiquant_mode = 0, value_antiquant_mode = 0;
  bool return_lse = false;
  // When a query row sees every key that lengths and atten_mask allow; patterns and query lengths are ignored then.
  enum class Decode { kNever, kSingleRow, kAlways } decode = Decode::kNever;
  const char* key_lengths_name = "actual_seq_lengths_kv";
  const char* score_scale_name = "dequant_scale1";
  const char* value_scale_name = "dequant_scale2";
};

// An absent input is not present; padding_mask must be absent. The second half of a joint pair of scales is value's.
struct InferenceInputs {
  TensorView query, key, value, padding_mask;
  TensorView pse_shift, atten_mask, lengths, key_lengths;
  TensorView dequant_scale1, quant_scale1, dequant_scale2, quant_scale2, quant_offset2;
  TensorView antiquant_scale, antiquant_offset;
  TensorView key_antiquant_scale, key_antiquant_offset, value_antiquant_scale, value_antiquant_offset;
  TensorView block_table, query_padding_size, kv_padding_size;  // sizes are in host memory, like all lengths
  TensorView key_shared_prefix, value_shared_prefix, prefix_length;
  TensorView query_rope, key_rope;
  // Key and value are int8, and behind the elements of a head each row has their scale, a float32.
  bool scaled_rows = false;
};

// Reads the inputs that all operators name alike; `In` holds their indices in the node.
template <class In>
InferenceInputs ReadCommonInputs(OpContext& ctx) {
  InferenceInputs in;
  in.query = ctx.Input(In::query);
  in.key = ctx.Input(In::key);
  in.value = ctx.Input(In::value);
  in.pse_shift = ctx.Input(In::pse_shift);
  in.atten_mask = ctx.Input(In::atten_mask);
  in.quant_scale1 = ctx.Input(In::quant_scale1);
  in.quant_scale2 = ctx.Input(In::quant_scale2);
  in.quant_offset2 = ctx.Input(In::quant_offset2);
  return in;
}

class InferenceCall;

// Checks calls of an operator with these attributes, and launches them.
class InferenceLauncher {
 public:
  struct Outputs {
    TensorView attention, lse;  // not present: not wanted
  };

  // Checks what can be checked from attributes alone.
  InferenceLauncher(const KernelInfo& info, InferenceAttributes attributes);
  // Checks the inputs and launches `before()`, if there is one, and then attention. `allocate` makes the outputs.
  void Launch(OpContext& ctx, InferenceInputs inputs,
              const std::function<Outputs(DType, const InferenceCall&)>& allocate,
              std::function<void()> before = {}) const;

  const InferenceAttributes& attributes() const { return attributes_; }

 private:
  InferenceAttributes attributes_;
  const Layout* layout_ = nullptr;
  const bool late_;  // whether the launch reads lengths and paddings
};

// The kernel of an operator, given its attributes and a function that reads its inputs.
class InferenceKernel : public Kernel {
 public:
  using InputReader = InferenceInputs (*)(OpContext& ctx);
  InferenceKernel(const KernelInfo& info, InferenceAttributes attributes, InputReader read)
      : launcher_(info, std::move(attributes)), read_(read) {}
  // Allocates attention and, where the operator has it, log-sum-exp.
  void Compute(OpContext& ctx) const override;

 private:
  InferenceLauncher launcher_;
  InputReader read_;
};

}  // namespace npu::attention
