// npu_moe_distribute_combine and its variants: the results of experts return to the ranks of their tokens and are
// summed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"
#include "ep/kernels/communication/expert_rows.h"
#include "ep/kernels/communication/token_slots.h"

namespace npu {

// The tensors of a call; the last four are for the experts that need no rank, and absent in variants without those.
struct CombineInputs {
  TensorView rows, ids, notes, ends, weights, mask, carried, shared, original, alpha_1, alpha_2, constant;

  // Those of the variant whose inputs have the places In.
  template <class In>
  static CombineInputs Of(OpContext& ctx) {
    CombineInputs given;
    given.rows = ctx.Input(In::expand_x);
    given.ids = ctx.Input(In::expert_ids);
    if constexpr (requires { In::expand_idx; }) {
      given.notes = ctx.Input(In::expand_idx);
    } else {
      given.notes = ctx.Input(In::assist_info_for_combine);
    }
    given.ends = ctx.Input(In::ep_send_counts);
    given.weights = ctx.Input(In::expert_scales);
    given.mask = ctx.Input(In::x_active_mask);
    given.carried = ctx.Input(In::expand_scales);
    given.shared = ctx.Input(In::shared_expert_x);
    if constexpr (requires { In::ori_x; }) {
      given.original = ctx.Input(In::ori_x);
      given.alpha_1 = ctx.Input(In::const_expert_alpha_1);
      given.alpha_2 = ctx.Input(In::const_expert_alpha_2);
      given.constant = ctx.Input(In::const_expert_v);
    }
    return given;
  }

  int64_t tokens() const { return ids.shape[0]; }
  int64_t slots() const { return ids.shape[1]; }
  int64_t width() const { return rows.shape[1]; }
};

class Combine {
 public:
  // `notes`: what the call names the dispatch's notes, which are those of its second version if `of_rows`.
  Combine(const char* op, const char* notes, bool of_rows, const KernelInfo& info);

  // A call of a variant that returns the sums, whose inputs have the places In. Throws, on every rank, for tensors that
  // do not fit together.
  template <class In>
  void Compute(OpContext& ctx) const {
    const std::shared_ptr<Communicator> group = Find(ctx);
    const CombineInputs given = CheckForAll(ctx, op_, group, [&] { return Read<In>(ctx, group); });
    const TensorView sums = ctx.Output(0, given.rows.dtype, Shape{given.tokens(), given.width()});
    ctx.Launch(op_, [this, given, group, sums] { Run(given, group, sums.data); });
  }

  // The parts of another call. The group; null for this rank alone.
  std::shared_ptr<Communicator> Find(OpContext& ctx) const { return experts_.Find(ctx); }
  // The tensors of the variant whose inputs have the places In. Throws if they do not fit together.
  template <class In>
  CombineInputs Read(OpContext& ctx, const std::shared_ptr<Communicator>& group) const {
    experts_.CheckRank(op_, group);
    CheckNoReserved<In>(op_, ctx);
    const auto given = CombineInputs::Of<In>(ctx);
    Check(given);
    return given;
  }
  // Throws if a tensor has another type or shape.
  void CheckLike(const char* name, const TensorView& tensor, DType dtype, const Shape& shape) const;
  // The part of a launch that communicates: sums [tokens, width] of the type of the rows, rounded once. The group is
  // null for this rank alone.
  void Run(const CombineInputs& given, const std::shared_ptr<Communicator>& group, void* sums) const;

 private:
  void Check(const CombineInputs& given) const;
  std::vector<int64_t> CountsOf(const CombineInputs& given) const;
  void CheckPlaces(const CombineInputs& given, const TokenSlots& slots) const;
  void CheckNotes(const CombineInputs& given, const std::vector<int64_t>& counts) const;
  void CheckPairs(const std::vector<int64_t>& counts, const std::vector<int64_t>& expected) const;
  void CheckArrived(const TokenSlots& slots, const RowRecords& arrived) const;
  RowRecords Pack(const CombineInputs& given, const std::vector<int64_t>& counts, size_t row_bytes) const;
  void SumToken(const CombineInputs& given, const TokenSlots& slots, const RowRecords& arrived, int64_t token,
                void* to) const;

  const char *op_, *notes_;
  bool of_rows_;
  ExpertRanks experts_;
  bool quantises_;
  int64_t global_batch_;
};

}  // namespace npu
