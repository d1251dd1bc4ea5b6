#include "ep/kernels/communication/expert_ranks.h"

#include <algorithm>
#include <iterator>

#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kSpecial[] = {"zero_expert_num", "copy_expert_num", "const_expert_num"};
constexpr const char* kAlgorithms[] = {"", "fullmesh", "fullmesh_v1", "fullmesh_v2", "hierarchy"};

void CheckAlgorithm(const char* op, const std::string& name) {
  const auto* known = std::find(std::begin(kAlgorithms), std::end(kAlgorithms), name);
  NPU_OP_CHECK(op, known != std::end(kAlgorithms),
               "expected comm_alg '' or 'fullmesh', 'fullmesh_v1', 'fullmesh_v2', 'hierarchy', got '", Printable(name),
               "'");
}

}  // namespace

ExpertRanks::ExpertRanks(const char* op, const KernelInfo& info)
    : group_(op, info, "group_ep", "ep_world_size"),
      ranks_(info.attributes.Int("ep_world_size")),
      rank_(info.attributes.Int("ep_rank_id")),
      routed_(info.attributes.Int("moe_expert_num")),
      shared_(info.attributes.Int("shared_expert_num")),
      shared_ranks_(info.attributes.Int("shared_expert_rank_num")) {
  const Attributes& given = info.attributes;
  NPU_OP_CHECK(op, rank_ >= 0 && rank_ < ranks_, "expected ep_rank_id in [0, ", ranks_, "), got ", rank_);
  NPU_OP_CHECK(op, shared_ranks_ >= 0 && shared_ranks_ < ranks_, "expected shared_expert_rank_num in [0, ", ranks_,
               "), got ", shared_ranks_);
  if (shared_ranks_ == 0) {
    NPU_OP_CHECK(op, shared_ == 0 || shared_ == 1, "expected shared_expert_num 0 or 1 without ranks for them, got ",
                 shared_);
    shared_ = 0;
  } else {
    NPU_OP_CHECK(op, shared_ > 0 && shared_ranks_ % shared_ == 0, "expected shared_expert_num to divide the ",
                 shared_ranks_, " ranks for them, got ", shared_);
  }
  NPU_OP_CHECK(op, routed_ >= 1 && routed_ <= kMaxExperts && routed_ % (ranks_ - shared_ranks_) == 0,
               "expected moe_expert_num from 1 to ", kMaxExperts, " that ", ranks_ - shared_ranks_,
               " ranks divide, got ", routed_);
  for (size_t i = 0; i < special_.size(); ++i) {
    special_[i] = given.Int(kSpecial[i], 0);
    NPU_OP_CHECK(op, special_[i] >= 0 && special_[i] <= kMaxExperts, "expected ", kSpecial[i], " from 0 to ",
                 kMaxExperts, ", got ", special_[i]);
  }
  const int64_t tp_ranks = given.Int("tp_world_size");
  NPU_OP_CHECK(op, tp_ranks == 0 || tp_ranks == 1, "expected tp_world_size 0 or 1, got ", tp_ranks);
  CheckUnused(op, given, "tp_rank_id", 0);
  CheckUnused(op, given, "expert_shard_type", 0);
  CheckAlgorithm(op, given.String("comm_alg", ""));
}

void ExpertRanks::CheckRank(const char* op, const std::shared_ptr<Communicator>& group) const {
  NPU_OP_CHECK(op, group == nullptr || group->rank() == rank_, "expected ep_rank_id ", group->rank(),
               ", which this rank has in the group '", Printable(group->group()), "', got ", rank_);
}

int64_t ExpertRanks::MostTokens(const char* op, int64_t global_batch, int64_t tokens) const {
  if (global_batch == 0) return tokens;
  NPU_OP_CHECK(op, global_batch % ranks_ == 0 && global_batch / ranks_ >= tokens && global_batch <= INT32_MAX,
               "expected global_bs of 0 or ", ranks_, " times a number of tokens from ", tokens, " to ",
               INT32_MAX / ranks_, ", got ", global_batch);
  return global_batch / ranks_;
}

int64_t ExpertRanks::MostRows(const char* op, int64_t batch, int64_t slots) const {
  const int64_t copies = shared_ > 0 ? shared_ranks_ / shared_ : 1;
  const int64_t of_token = rank_ < shared_ranks_ ? (ranks_ + copies - 1) / copies : ranks_ * std::min(here(), slots);
  const Shape rows{batch, of_token};
  CheckRowCount(op, rows.Elements());
  return rows.Elements();
}

std::string ExpertRanks::ToString() const {
  return Concat(routed_, " experts, ", shared_, " shared ones on ", shared_ranks_, " ranks, special ones ", zeros(),
                " + ", copies(), " + ", constants());
}

void ExpertRanks::CheckIds(const char* op, const TensorView& ids, const TensorView& mask, int64_t tokens) const {
  NPU_OP_CHECK(op, ids && ids.shape.rank() == 2 && (tokens < 0 || ids.shape[0] == tokens) && ids.shape[1] > 0,
               "expected expert_ids [", tokens < 0 ? "BS" : std::to_string(tokens), ", K] with K of 1 or more, got ",
               ids.shape);
  const Shape of_tokens{ids.shape[0]};
  NPU_OP_CHECK(op, !mask || mask.shape == of_tokens || mask.shape == ids.shape, "expected x_active_mask ", of_tokens,
               " or ", ids.shape, ", got ", mask.shape);
  CheckRowCount(op, ids.shape[0] * (ids.shape[1] + shared_));
}

}  // namespace npu
