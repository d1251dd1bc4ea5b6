// npu_moe_distribute_dispatch and its second version: tokens go to the ranks that have their experts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"
#include "ep/kernels/communication/expert_rows.h"
#include "ep/kernels/communication/token_slots.h"

namespace npu {

class Dispatch {
 public:
  struct Inputs {
    TensorView x, ids, scales, mask, weights;
  };

  Dispatch(const char* op, bool second, const KernelInfo& info);

  const ExpertRanks& experts() const { return experts_; }
  // Throws for tensors that do not fit together.
  void Check(const Inputs& given) const;
  // Allocates the results, whose order is that of both versions, and launches.
  void Compute(OpContext& ctx, const std::shared_ptr<Communicator>& group, const Inputs& given) const;

 private:
  struct Results {
    TensorView rows, scales, notes, expert_rows, ends, weights;
  };

  void Run(const Inputs& given, const Results& results, int64_t room, Communicator* group,
           const std::string& call) const;
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
