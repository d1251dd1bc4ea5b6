// npu_moe_gating_top_k(x, bias, input_ids, tid2eid; k, ..) -> y, expert_idx, norm_out. The semantics are in
// npu_moe_gating_top_k.py.
#include "contrib_ops/moe/npu_moe_gating_top_k.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/indexing/index.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/ordered_key.h"
#include "ep/kernels/quantization/float_block.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/kernels/top_keys.h"
#include "ep/kernels/vector_math.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeGatingTopK::In;
using Out = nodes::NPUMoeGatingTopK::Out;

constexpr const char* kOp = "npu_moe_gating_top_k";

struct Gating {
  int64_t k, k_group, group_count;
  bool by_best_two, sigmoid, shows_scores;
  float factor, eps;
};

// What one thread needs to choose the experts of one token after the other.
class Chooser {
 public:
  Chooser(const Gating& gating, int64_t experts)
      : gating_(gating),
        size_(experts / gating.group_count),
        groups_(gating.group_count, gating.k_group),
        members_(gating.k_group * size_, gating.k),
        goodness_(static_cast<size_t>(gating.group_count)),
        best_groups_(static_cast<size_t>(gating.k_group)),
        kept_(static_cast<size_t>(gating.k_group * size_)) {}

  // `keys` order the experts; `values` are what the best two of a group are added of.
  void Choose(const int32_t* keys, const float* values, int32_t* chosen) {
    if (gating_.group_count == 1) return members_.Select(keys, chosen);
    for (int64_t g = 0; g < gating_.group_count; ++g)
      goodness_[g] = gating_.by_best_two ? BestTwo(values + g * size_) : Best(keys + g * size_);
    groups_.Select(goodness_.data(), best_groups_.data());
    std::sort(best_groups_.begin(), best_groups_.end());
    for (int64_t i = 0; i < gating_.k_group; ++i)
      std::copy_n(keys + best_groups_[i] * size_, size_, kept_.data() + i * size_);
    members_.Select(kept_.data(), chosen);
    for (int64_t j = 0; j < gating_.k; ++j)
      chosen[j] = static_cast<int32_t>(best_groups_[chosen[j] / size_] * size_ + chosen[j] % size_);
  }

 private:
  int32_t Best(const int32_t* keys) const {
    int32_t best = std::numeric_limits<int32_t>::min();
#pragma omp simd reduction(max : best)
    for (int64_t i = 0; i < size_; ++i) best = keys[i] > best ? keys[i] : best;
    return best;
  }

  int32_t BestTwo(const float* values) const {
    int32_t first = std::numeric_limits<int32_t>::min(), second = first;
    for (int64_t i = 0; i < size_; ++i) {
      const int32_t key = OrderedKey(values[i]);
      second = std::max(second, std::min(first, key));
      first = std::max(first, key);
    }
    return OrderedKey(FloatOfKey(first) + FloatOfKey(second));
  }

  const Gating& gating_;
  int64_t size_;
  TopKeys groups_, members_;
  std::vector<int32_t> goodness_, best_groups_, kept_;
};

// Results that the caller has no use for are null.
template <class T>
struct Task {
  Gating gating;
  TensorView x, bias, ids, table;
  T* y;
  int32_t *expert_of_slot, *expert_idx;
  float* norm_out;
  float* wide_bias;
  int64_t tokens, experts;

  void Run() const {
    if (table)
      DispatchIndices(kOp, ids, [&](auto id) {
        DispatchIndices(kOp, table, [&](auto expert) { LookUp<decltype(id), decltype(expert)>(); });
      });
    if (bias) ConvertToFloats(bias, wide_bias);
    ParallelFor(tokens, RowGrain(experts), [this](int64_t begin, int64_t end) { Rows(begin, end); });
  }

 private:
  // The experts of the tokens' ids: nothing else is computed before all of them are checked.
  template <class Id, class Expert>
  void LookUp() const {
    const int64_t k = gating.k;
    const CheckedNumbers<Id> id(kOp, "input_ids", ids.as<Id>(), 0, table.shape[0]);
    const CheckedNumbers<Expert> expert(kOp, "experts of tid2eid", table.as<Expert>(), 0, experts);
    id.CheckFirst(tokens);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t first = id[t] * k, j = 0; j < k; ++j)
        expert_of_slot[t * k + j] = static_cast<int32_t>(expert[first + j]);
  }

  void Rows(int64_t begin, int64_t end) const {
    const bool by_bias = bias && !table, by_x = !bias && !table;
    std::vector<float> scores(static_cast<size_t>(experts)), biased(by_bias ? scores.size() : 0);
    std::vector<int32_t> keys(static_cast<size_t>(experts));
    Chooser chooser(gating, experts);
    for (int64_t token = begin; token < end; ++token) {
      int32_t* chosen = expert_of_slot + token * gating.k;
      ToFloat(x.as<const T>() + token * experts, scores.data(), experts);
      if (by_x) SetKeys(scores.data(), keys.data());
      Score(scores.data());
      if (by_bias) {
        for (int64_t e = 0; e < experts; ++e) biased[e] = scores[e] + wide_bias[e];
        SetKeys(biased.data(), keys.data());
      }
      if (!table) chooser.Choose(keys.data(), by_bias ? biased.data() : scores.data(), chosen);
      if (y != nullptr) Weigh(scores.data(), chosen, y + token * gating.k);
      if (expert_idx != nullptr) std::copy_n(chosen, gating.k, expert_idx + token * gating.k);
      if (norm_out == nullptr) continue;
      if (gating.shows_scores) {
        std::copy(scores.begin(), scores.end(), norm_out + token * experts);
      } else {
        std::fill_n(norm_out + token * experts, experts, 0.0f);
      }
    }
  }

  void SetKeys(const float* values, int32_t* keys) const {
    for (int64_t e = 0; e < experts; ++e) keys[e] = OrderedKey(values[e]);
  }

  void Score(float* values) const {
    if (!gating.sigmoid) return SoftmaxRow(values, experts);
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) values[e] = math::Sigmoid(values[e]);
  }

  void Weigh(const float* scores, const int32_t* chosen, T* to) const {
    float sum = 0.0f;
    for (int64_t j = 0; j < gating.k; ++j) sum += scores[chosen[j]];
    const float divisor = gating.sigmoid ? sum + gating.eps : 1.0f;
    for (int64_t j = 0; j < gating.k; ++j) to[j] = FromFloat<T>(scores[chosen[j]] / divisor * gating.factor);
  }
};

class MoeGatingTopKKernel final : public Kernel {
 public:
  explicit MoeGatingTopKKernel(const KernelInfo& info)
      : gating_{.k = info.attributes.Int("k"),
                .k_group = info.attributes.Int("k_group"),
                .group_count = info.attributes.Int("group_count"),
                .by_best_two = info.attributes.Int("group_select_mode") == 1,
                .sigmoid = info.attributes.Int("norm_type") == 1,
                .shows_scores = info.attributes.Bool("out_flag"),
                .factor = static_cast<float>(info.attributes.Float("routed_scaling_factor")),
                .eps = static_cast<float>(info.attributes.Float("eps"))},
        norm_type_(info.attributes.Int("norm_type")),
        mode_(info.attributes.Int("group_select_mode")),
        renorm_(info.attributes.Int("renorm")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), bias = ctx.Input(In::bias);
    const TensorView ids = ctx.Input(In::input_ids), table = ctx.Input(In::tid2eid);
    NPU_OP_CHECK(kOp, x && x.shape.rank() == 2, "expected x [T, E], got ", x.shape);
    const int64_t tokens = x.shape[0], experts = x.shape[1];
    CheckAttributes(experts);
    NPU_OP_CHECK(kOp, !bias || bias.shape == Shape{experts}, "expected bias [", experts, "], got ", bias.shape);
    NPU_OP_CHECK(kOp, ids.present == table.present, "expected input_ids and tid2eid both or neither");
    if (table) {
      NPU_OP_CHECK(kOp, ids.shape == Shape{tokens}, "expected input_ids [", tokens, "], got ", ids.shape);
      NPU_OP_CHECK(kOp, table.shape.rank() == 2 && table.shape[1] == gating_.k, "expected tid2eid [V, ", gating_.k,
                   "], got ", table.shape);
    }
    const Shape shape{tokens, gating_.k};
    const TensorView y = ctx.Output(Out::y, x.dtype, shape);
    const TensorView expert_idx = ctx.Output(Out::expert_idx, DType::kInt32, shape);
    const TensorView norm_out = ctx.Output(Out::norm_out, DType::kFloat32, x.shape);
    if (tokens == 0) return;
    auto* expert_of_slot = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, shape.Elements())));
    auto* wide_bias = static_cast<float*>(bias ? ctx.Workspace(BytesFor(DType::kFloat32, experts)) : nullptr);
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Task<T> task{gating_,
                         x,
                         bias,
                         ids,
                         table,
                         y.as<T>(),
                         expert_of_slot,
                         expert_idx.as<int32_t>(),
                         norm_out.as<float>(),
                         wide_bias,
                         tokens,
                         experts};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  void CheckAttributes(int64_t experts) const {
    const auto& [k, k_group, group_count, by_best_two, sigmoid, shows_scores, factor, eps] = gating_;
    NPU_OP_CHECK(kOp, norm_type_ == 0 || norm_type_ == 1, "expected norm_type 0 or 1, got ", norm_type_);
    NPU_OP_CHECK(kOp, mode_ == 0 || mode_ == 1, "expected group_select_mode 0 or 1, got ", mode_);
    NPU_OP_CHECK(kOp, renorm_ == 0, "expected renorm 0, got ", renorm_);
    NPU_OP_CHECK(kOp, group_count >= 1 && experts % group_count == 0, "expected group_count that divides the ", experts,
                 " experts, got ", group_count);
    NPU_OP_CHECK(kOp, k_group >= 1 && k_group <= group_count, "expected k_group in [1, ", group_count, "], got ",
                 k_group);
    const int64_t size = experts / group_count;
    NPU_OP_CHECK(kOp, mode_ == 0 || group_count == 1 || size >= 2,
                 "expected groups of at least 2 experts for group_select_mode 1, got ", size);
    NPU_OP_CHECK(kOp, k >= 1 && k <= k_group * size, "expected k in [1, ", k_group * size, "], got ", k);
  }

  Gating gating_;
  int64_t norm_type_, mode_, renorm_;
};

NPU_KERNEL(NPUMoeGatingTopK, MoeGatingTopKKernel);

}  // namespace
}  // namespace npu
