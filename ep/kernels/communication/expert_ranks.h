// Where the experts of the operators are that send tokens to the experts of other ranks, and bring the results back.
// The experts are spread evenly over the ranks, the lowest numbers first. Shared experts, which compute every token,
// may have ranks of their own: the first ones, as many for each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/unused_arguments.h"

namespace npu {

class ExpertRanks {
 public:
  // Throws for attributes that cannot be.
  ExpertRanks(const char* op, const KernelInfo& info);

  // The group of the call; null for this rank alone.
  std::shared_ptr<Communicator> Find(OpContext& ctx) const { return group_.Find(ctx); }
  // Refuses a group in which this rank has another number.
  void CheckRank(const char* op, const std::shared_ptr<Communicator>& group) const;

  int64_t ranks() const { return ranks_; }
  int64_t routed() const { return routed_; }
  // Shared experts that have ranks of their own.
  int64_t shared() const { return shared_; }
  int64_t zeros() const { return special_[0]; }
  int64_t copies() const { return special_[1]; }
  int64_t constants() const { return special_[2]; }
  // The experts that a token may choose: those of ranks, and those that need none.
  int64_t numbers() const { return routed_ + zeros() + copies() + constants(); }

  // A rank has at most this many experts; a list with an entry for each rank and expert has so many for each rank.
  int64_t of_rank() const { return routed_ / (ranks_ - shared_ranks_); }
  int64_t here() const { return rank_ < shared_ranks_ ? 1 : of_rank(); }
  // The entry of an expert in such a list.
  int64_t EntryOf(int64_t expert) const { return shared_ranks_ * of_rank() + expert; }
  // The entry of the copy of a shared expert that this rank's tokens go to.
  int64_t EntryOfShared(int64_t shared) const {
    const int64_t copies = shared_ranks_ / shared_;
    return (shared * copies + rank_ % copies) * of_rank();
  }

  // The most tokens that a rank has, by the argument global_bs.
  int64_t MostTokens(const char* op, int64_t global_batch, int64_t tokens) const;
  // The most rows that this rank may get of `batch` tokens of each rank with `slots` experts.
  int64_t MostRows(const char* op, int64_t batch, int64_t slots) const;

  // Refuses the experts of tokens, or a mask of them, that have no such shape. `tokens` is -1 where any number will do.
  void CheckIds(const char* op, const TensorView& ids, const TensorView& mask, int64_t tokens) const;

  // What all ranks have to say alike.
  std::string ToString() const;

 private:
  RankGroup group_;
  int64_t ranks_, rank_, routed_, shared_, shared_ranks_;
  std::array<int64_t, 3> special_{};  // zero, copy, constant
};

// Refuses the tensors of other devices that an operator has, of which In are the places.
template <class In>
void CheckNoReserved(const char* op, OpContext& ctx) {
  if constexpr (requires { In::activation_scale; }) {
    CheckNoTensor(op, ctx, In::activation_scale, "activation_scale");
    CheckNoTensor(op, ctx, In::weight_scale, "weight_scale");
    CheckNoTensor(op, ctx, In::group_list, "group_list");
  }
  if constexpr (requires { In::elastic_info; }) CheckNoTensor(op, ctx, In::elastic_info, "elastic_info");
  if constexpr (requires { In::performance_info; }) CheckNoTensor(op, ctx, In::performance_info, "performance_info");
}

}  // namespace npu
