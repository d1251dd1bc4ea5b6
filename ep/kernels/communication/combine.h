// npu_moe_distribute_combine and its variants: the results of experts return to the ranks of their tokens and are
// summed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"
#include "ep/kernels/communication/expert_rows.h"
#include "ep/kernels/communication/token_slots.h"

namespace npu {

// The tensors of a call; the last four are for the experts that need no rank.
struct CombineInputs {
  TensorView rows, ids, notes, ends, weights, mask, carried, shared, original, alpha_1, alpha_2, constant;
  int64_t tokens() const { return ids.shape[0]; }
  int64_t slots() const { return ids.shape[1]; }
  int64_t width() const { return rows.shape[1]; }
};

class Combine {
 public:
  // `notes`: what the call names the dispatch's notes, which are those of its second version if `of_rows`.
  Combine(const char* op, const char* notes, bool of_rows, const KernelInfo& info);

  const ExpertRanks& experts() const { return experts_; }
  // Throws for tensors that do not fit together.
  void Check(const CombineInputs& given) const;
  // What all ranks have to say alike.
  std::string CallOf(const CombineInputs& given) const;
  // The part of a launch that communicates: sums [tokens, width] of the type of the rows, rounded once. The group is
  // null for this rank alone.
  void Run(const CombineInputs& given, const std::string& call, const std::shared_ptr<Communicator>& group,
           void* sums) const;

 private:
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
