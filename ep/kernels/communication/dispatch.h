// npu_moe_distribute_dispatch and its second version: tokens go to the ranks that have their experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"
#include "ep/kernels/communication/expert_rows.h"
#include "ep/kernels/communication/token_slots.h"

namespace npu {

class Dispatch {
 public:
  Dispatch(const char* op, bool second, const KernelInfo& info);

  // A call of the version whose inputs have the places In. Throws, on every rank, for tensors that do not fit together.
  template <class In>
  void Compute(OpContext& ctx) const {
    const std::shared_ptr<Communicator> group = experts_.Find(ctx);
    const Inputs given = CheckForAll(ctx, op_, group, [&] {
      experts_.CheckRank(op_, group);
      CheckNoReserved<In>(op_, ctx);
      const Inputs read{ctx.Input(In::x), ctx.Input(In::expert_ids), ctx.Input(In::scales),
                        ctx.Input(In::x_active_mask), ctx.Input(In::expert_scales)};
      Check(read);
      return read;
    });
    Launch(ctx, group, given);
  }

 private:
  struct Inputs {
    TensorView x, ids, scales, mask, weights;
  };
  struct Results {
    TensorView rows, scales, notes, expert_rows, ends, weights;
  };

  void Check(const Inputs& given) const;
  // Allocates the results, whose order is that of both versions, and launches.
  void Launch(OpContext& ctx, const std::shared_ptr<Communicator>& group, const Inputs& given) const;
  // `most`: tokens that a rank has; `room`: rows that this rank may get.
  void Run(const Inputs& given, const Results& results, int64_t most, int64_t room, Communicator* group) const;
  void Pack(const Inputs& given, const TokenSlots::Row& row, char* to, RowNote& note) const;
  void SetCounts(const std::vector<int64_t>& received, const Results& results) const;
  void SetRows(const std::vector<int64_t>& received, const RowRecords& arrived, size_t row_bytes, int64_t room,
               const Results& results) const;

  const char* op_;
  bool second_;
  ExpertRanks experts_;
  int64_t quant_mode_, form_, global_batch_, reserved_;
};

}  // namespace npu
