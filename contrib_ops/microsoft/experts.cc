#include "contrib_ops/microsoft/experts.h"

#include <algorithm>
#include <vector>

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/ordered_key.h"
#include "ep/kernels/quantization/float_block.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/kernels/top_keys.h"

namespace npu {
namespace {

using Kind = ExpertActivation::Kind;
using Linear = ExpertActivation::Linear;

constexpr int64_t kMostRows = 512;  // of an expert at a time: what bounds the scratch memory

struct NamedKind {
  const char* name;
  Kind kind;
};
constexpr NamedKind kKinds[] = {{"identity", Kind::kIdentity},
                                {"relu", Kind::kRelu},
                                {"gelu", Kind::kGelu},
                                {"silu", Kind::kSilu},
                                {"swiglu", Kind::kSwiGlu}};

const NamedKind* KindOf(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const NamedKind& k) { return name == k.name; });
  return found == std::end(kKinds) ? nullptr : found;
}

float Activated(Kind kind, float x) {
  switch (kind) {
    case Kind::kRelu:
      return x < 0 ? 0.0f : x;
    case Kind::kGelu:
      return GeluTanh(x);  // onnxruntime's of experts
    case Kind::kSilu:
      return Silu(x);
    default:
      return x;
  }
}

// A token's place among the rows of an expert, and its share.
struct Choice {
  int32_t token;
  float share;
};

// The work of a launch: buffers hold the rows of one expert.
template <class T>
struct Work {
  const ExpertLayers& layers;
  int64_t tokens, hidden, experts;
  T* rows;       // [kMostRows, hidden]
  float* first;  // [kMostRows, columns]
  float* third;
  T* inner;       // [kMostRows, inner]
  float* second;  // [kMostRows, hidden]
  float* sums;    // [tokens, hidden]

  void Run(const T* x, T* y) const {
    std::fill_n(sums, tokens * hidden, 0.0f);
    const std::vector<std::vector<Choice>> chosen = Route();
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::vector<Choice>& all = chosen[static_cast<size_t>(expert)];
      for (size_t begin = 0; begin < all.size(); begin += kMostRows)
        RunRows(x, expert, all.data() + begin, std::min<int64_t>(kMostRows, static_cast<int64_t>(all.size() - begin)));
    }
    ParallelFor(tokens, RowGrain(hidden), [&](int64_t begin, int64_t end) {
      FromFloat(sums + begin * hidden, y + begin * hidden, (end - begin) * hidden);
    });
  }

 private:
  std::vector<std::vector<Choice>> Route() const {
    std::vector<std::vector<Choice>> chosen(static_cast<size_t>(experts));
    std::vector<int32_t> keys(static_cast<size_t>(experts)), best(static_cast<size_t>(layers.k));
    std::vector<float> values(static_cast<size_t>(experts));
    TopKeys top(experts, layers.k);
    for (int64_t token = 0; token < tokens; ++token) {
      ToFloat(layers.logits.as<const T>() + token * experts, values.data(), experts);
      for (int64_t e = 0; e < experts; ++e) keys[static_cast<size_t>(e)] = OrderedKey(values[static_cast<size_t>(e)]);
      top.Select(keys.data(), best.data());
      if (layers.shares) {
        ToFloat(layers.shares.as<const T>() + token * experts, values.data(), experts);
      } else {
        SoftmaxRow(values.data(), experts);
      }
      float sum = 1.0f;
      if (layers.normalized) {
        sum = 0.0f;
        for (const int32_t e : best) sum += values[static_cast<size_t>(e)];
      }
      for (const int32_t e : best)
        chosen[static_cast<size_t>(e)].push_back({static_cast<int32_t>(token), values[static_cast<size_t>(e)] / sum});
    }
    return chosen;
  }

  void RunRows(const T* x, int64_t expert, const Choice* choices, int64_t count) const {
    GatherRows(x, count, hidden * static_cast<int64_t>(sizeof(T)), rows, [=](int64_t i) { return choices[i].token; });
    const gemm::Matrix given = gemm::Matrix::RowMajor(rows, count, hidden);
    layers.first.multiply(expert, given, {first, DType::kFloat32, layers.first.columns});
    if (third != nullptr) layers.third.multiply(expert, given, {third, DType::kFloat32, layers.inner});
    ParallelFor(count, RowGrain(2 * layers.inner), [&](int64_t begin, int64_t end) {
      RowScratch scratch(layers.inner);
      for (int64_t i = begin; i < end; ++i) {
        layers.activation.Row(first + i * layers.first.columns, third == nullptr ? nullptr : third + i * layers.inner,
                              layers.inner, scratch.values());
        FromFloat(scratch.values(), inner + i * layers.inner, layers.inner);
      }
    });
    layers.second.multiply(expert, gemm::Matrix::RowMajor(inner, count, layers.inner),
                           {second, DType::kFloat32, hidden});
    // A token has an expert at most once: rows of `sums` are of one thread.
    ParallelFor(count, RowGrain(hidden), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* to = sums + choices[i].token * hidden;
        const float share = choices[i].share;
        const float* from = second + i * hidden;
#pragma omp simd
        for (int64_t j = 0; j < hidden; ++j) to[j] += share * from[j];
      }
    });
  }
};

}  // namespace

ExpertActivation::ExpertActivation(const char* op, const Attributes& attributes, bool third) {
  const NamedKind* named = KindOf(attributes.String("activation_type"));
  NPU_OP_CHECK(op, named != nullptr, "expected activation_type identity, relu, gelu, silu or swiglu, got '",
               attributes.String("activation_type"), "'");
  kind = named->kind;
  alpha = static_cast<float>(attributes.Float("activation_alpha"));
  beta = static_cast<float>(attributes.Float("activation_beta"));
  if (attributes.Has("swiglu_limit")) limit = static_cast<float>(attributes.Float("swiglu_limit"));
  const int64_t fusion = kind == Kind::kSwiGlu ? attributes.Int("swiglu_fusion") : 0;
  NPU_OP_CHECK(op, fusion >= 0 && fusion <= 2, "expected swiglu_fusion 0, 1 or 2, got ", fusion);
  NPU_OP_CHECK(op, !third || fusion == 0, "expected no third weights with swiglu_fusion ", fusion);
  NPU_OP_CHECK(op, third || kind != Kind::kSwiGlu || fusion != 0,
               "expected third weights with swiglu_fusion 0, got none");
  linear = third ? Linear::kApart : fusion == 1 ? Linear::kInterleaved : fusion == 2 ? Linear::kBehind : Linear::kNone;
}

void ExpertActivation::Row(const float* product, const float* apart, int64_t inner, float* values) const {
  const int64_t step = linear == Linear::kInterleaved ? 2 : 1;
  const float* other = linear == Linear::kApart         ? apart
                       : linear == Linear::kInterleaved ? product + 1
                       : linear == Linear::kBehind      ? product + inner
                                                        : nullptr;
  if (kind == Kind::kSwiGlu) {
    for (int64_t i = 0; i < inner; ++i) {
      const float gate = std::min(product[i * step], limit), up = std::clamp(other[i * step], -limit, limit);
      values[i] = gate * math::Sigmoid(alpha * gate) * (up + beta);
    }
    return;
  }
  for (int64_t i = 0; i < inner; ++i) values[i] = Activated(kind, product[i]);
  if (other != nullptr)
    for (int64_t i = 0; i < inner; ++i) values[i] *= other[i];
}

void ExpertLayers::Launch(OpContext& ctx) const {
  const TensorView y = ctx.Output(0, x.dtype, x.shape);
  if (y.elements() == 0) return;
  const int64_t hidden = x.shape.back(), tokens = x.elements() / hidden, rows = std::min(tokens, kMostRows);
  CheckRowCount(op, tokens);
  const auto floats = [&](int64_t lines, int64_t columns) {
    return static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, Shape{lines, columns}.Elements())));
  };
  DispatchFloats(op, x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto scratch = [&](int64_t columns) {
      return static_cast<T*>(ctx.Workspace(BytesFor(x.dtype, Shape{rows, columns}.Elements())));
    };
    T* gathered = scratch(hidden);
    float* product = floats(rows, first.columns);
    float* apart = third.multiply ? floats(rows, inner) : nullptr;
    T* activated = scratch(inner);
    float* result = floats(rows, hidden);
    float* sums = floats(tokens, hidden);
    ctx.Launch(op, [=, layers = *this, experts = logits.shape[1], from = x.as<const T>(), to = y.as<T>()] {
      Work<T>{layers, tokens, hidden, experts, gathered, product, apart, activated, result, sums}.Run(from, to);
    });
  });
}

std::vector<AttrDef> ExpertAttributes(std::vector<AttrDef> more) {
  std::vector<AttrDef> all{StringAttribute("activation_type", "relu"),
                           IntAttribute("k", 1),
                           IntAttribute("normalize_routing_weights", 0),
                           IntAttribute("use_sparse_mixer", 0),
                           FloatAttribute("activation_alpha", 1.0),
                           FloatAttribute("activation_beta", 0.0),
                           FloatAttribute("swiglu_limit"),
                           IntAttribute("swiglu_fusion", 0)};
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return all;
}

std::string WhyExpertsUnsupported(const NodeView& node) {
  const std::string kind = node.attributes.String("activation_type", "relu");
  if (KindOf(kind) == nullptr) return node.op_type + " with the activation " + kind + " is not implemented";
  if (node.attributes.Int("use_sparse_mixer", 0) != 0) return node.op_type + " with a sparse mixer is not implemented";
  return "";
}

void CheckExpertInputs(const char* op, const TensorView& x, const TensorView& logits, int64_t experts, int64_t hidden,
                       int64_t k) {
  NPU_OP_CHECK(op, (x.shape.rank() == 2 || x.shape.rank() == 3) && x.shape.back() == hidden, "expected input [tokens, ",
               hidden, "] or [batch, sequence, ", hidden, "], got ", x.shape);
  const Shape wanted{x.shape.Elements(0, x.shape.rank() - 1), experts};
  NPU_OP_CHECK(op, logits.dtype == x.dtype && logits.shape == wanted, "expected router_probs of ", NameOf(x.dtype), " ",
               wanted, ", got ", NameOf(logits.dtype), " ", logits.shape);
  NPU_OP_CHECK(op, k >= 1 && k <= experts, "expected k from 1 to ", experts, ", got ", k);
}

void CheckExpertBias(const char* op, const char* name, const TensorView& bias, const TensorView& x, int64_t experts,
                     int64_t columns) {
  const Shape wanted{experts, columns};
  NPU_OP_CHECK(op, !bias || (bias.dtype == x.dtype && bias.shape == wanted), "expected ", name, " of ", NameOf(x.dtype),
               " ", wanted, ", got ", NameOf(bias.dtype), " ", bias.shape);
}

gemm::Epilogue ExpertEpilogue(const TensorView& bias, int64_t expert, int64_t columns) {
  gemm::Epilogue epilogue;
  if (bias) epilogue.AddBias(bias, expert * columns);
  return epilogue;
}

}  // namespace npu
