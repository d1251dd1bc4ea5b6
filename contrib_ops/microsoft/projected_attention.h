// The attention of Attention, PackedAttention and QAttention: queries, keys and values are columns of one product, and
// the cache of both keys and values is one tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contrib_ops/microsoft/head_attention.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

struct ProjectedHeads {
  // What an operator may have besides the product: see its schema.
  struct Operands {
    TensorView mask = {}, past = {}, past_length = {}, bias = {};
    std::optional<RaggedRows> ragged = {};  // of a product without a batch
  };

  // Reads the attributes that the operators have.
  ProjectedHeads(const char* op, const KernelInfo& info);

  // Checks an input of `rank`, [B, S, Di] or [S, Di], against weights [Di, D + D + Dv].
  void CheckWeights(const Shape& input, const Shape& weights, int rank) const;
  // Scratch memory for the product.
  TensorView Projected(OpContext& ctx, const Shape& input, DType dtype, int64_t columns) const;
  // Attends to `projected` [B, S, D + D + Dv] or [S, D + D + Dv]; makes outputs 0, of the same rank,
  // and, without ragged rows, 1, present [2, B, N, T, D / N].
  void Attend(OpContext& ctx, const TensorView& projected, const Operands& operands) const;

  const char* op;
  DType float32_products;
  int64_t heads;
  double scale;
  float hidden;
  bool causal, shares_cache;
  std::vector<int64_t> sizes;  // columns of queries, keys and values; empty: a third of the weights each
};

// The product of Attention and PackedAttention, of floats; its weight is kept in panel order if it is a constant.
class Projection {
 public:
  explicit Projection(const KernelInfo& info) : packed_(info.float32_products) {}

  bool Pack(const char* op, const TensorView& constant, Stream& stream);
  // Checks and launches x * weights + bias, of an x of `rank`; `bias` may be absent.
  TensorView Launch(OpContext& ctx, const ProjectedHeads& heads, int rank, const TensorView& x,
                    const TensorView& weights, const TensorView& bias) const;

 private:
  gemm::PackedWeight packed_;
  TensorView weight_;  // type and shape
};

}  // namespace npu
