// The layers of MoE and QMoE: the rows of each expert are gathered, multiplied by its weights, activated, multiplied
// again and added up, each with the share that its token gives the expert.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/runtime/op_registry.h"

namespace npu {

// What is done with the first product.
struct ExpertActivation {
  enum class Kind { kIdentity, kRelu, kGelu, kSilu, kSwiGlu };
  // Where the linear part of a gate is: in a product of its own, or in that of the gate, whose columns take turns with
  // it or come before it.
  enum class Linear { kNone, kApart, kInterleaved, kBehind };

  // Reads the attributes; `third`: whether a third layer is given.
  ExpertActivation(const char* op, const Attributes& attributes, bool third);
  int64_t columns_of(int64_t inner) const {
    return linear == Linear::kInterleaved || linear == Linear::kBehind ? 2 * inner : inner;
  }
  // values = act(gate) * linear for a row of `inner`; `apart` is the row of the third layer.
  void Row(const float* product, const float* apart, int64_t inner, float* values) const;

  Kind kind = Kind::kRelu;
  Linear linear = Linear::kNone;
  float alpha = 1, beta = 0, limit = std::numeric_limits<float>::infinity();
};

// One layer: y = rows * weight of the expert + bias.
struct ExpertLayer {
  using Multiply = std::function<void(int64_t expert, const gemm::Matrix& rows, const gemm::Result& y)>;

  Multiply multiply;
  int64_t columns = 0;
};

// A node after its checks.
struct ExpertLayers {
  const char* op;
  TensorView x;       // [.., hidden]
  TensorView logits;  // [tokens, experts]
  TensorView shares;  // the same; absent: the softmax of the logits
  int64_t k;
  bool normalized;  // shares of the k best add up to 1
  ExpertActivation activation;
  ExpertLayer first, third, second;
  int64_t inner;

  // Makes output 0 and launches.
  void Launch(OpContext& ctx) const;
};

// The attributes that MoE and QMoE have.
std::vector<AttrDef> ExpertAttributes(std::vector<AttrDef> more);
// Why an operator with these attributes is not implemented, or "".
std::string WhyExpertsUnsupported(const NodeView& node);

// [.., hidden] and [tokens, experts] of a node, whose first weight is [experts, ..].
void CheckExpertInputs(const char* op, const TensorView& x, const TensorView& logits, int64_t experts, int64_t hidden,
                       int64_t k);
// An optional bias [experts, columns] of the input's type.
void CheckExpertBias(const char* op, const char* name, const TensorView& bias, const TensorView& x, int64_t experts,
                     int64_t columns);
gemm::Epilogue ExpertEpilogue(const TensorView& bias, int64_t expert, int64_t columns);

}  // namespace npu
