// The attention of Attention and QAttention: queries, keys and values are columns of one product, and the cache of both
// keys and values is one tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

struct ProjectedHeads {
  // What an operator may have besides the product: see its schema.
  struct Operands {
    TensorView mask, past, past_length, bias;
  };

  // Reads the attributes that both operators have.
  ProjectedHeads(const char* op, const KernelInfo& info);

  // Checks an input [B, S, Di] against weights [Di, D + D + Dv].
  void CheckWeights(const Shape& input, const Shape& weights) const;
  // Scratch memory for the product.
  TensorView Projected(OpContext& ctx, const Shape& input, DType dtype, int64_t columns) const;
  // Attends to `projected` [B, S, D + D + Dv]; makes outputs 0, [B, S, Dv], and 1, present [2, B, N, T, D / N].
  void Attend(OpContext& ctx, const TensorView& projected, const Operands& operands) const;

  const char* op;
  int64_t heads;
  double scale;
  float hidden;
  bool causal, shares_cache;
  std::vector<int64_t> sizes;  // columns of queries, keys and values; empty: a third of the weights each
};

}  // namespace npu
