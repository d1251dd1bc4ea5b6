// What the operators share that attend to pages of a cache from rows side by side.
#pragma once

#include "ep/kernels/attention/inference/inference.h"
#include "ep/kernels/onnx_def.h"

namespace npu::attention {

inline InferenceAttributes PagedRowAttributes(const char* op, const Attributes& a) {
  InferenceAttributes r;
  r.op = op;
  r.layout = "TND";
  r.layouts = {"TND"};
  r.heads = a.Int("num_heads");
  r.key_heads = a.Int("num_key_value_heads");
  r.scale = static_cast<float>(a.Float("scale"));
  r.sparse_mode = a.Int("sparse_mode");
  r.pre_tokens = a.Int("pre_tokens");
  r.next_tokens = a.Int("next_tokens");
  r.block_size = a.Int("block_size");
  r.key_lengths_name = "key_lengths";
  return r;
}

// A list of lengths that a launch reads.
inline ArgDef LateLengths(const char* name) {
  ArgDef arg = HostInput(name, {DType::kInt64});
  arg.late = true;
  return arg;
}

}  // namespace npu::attention
