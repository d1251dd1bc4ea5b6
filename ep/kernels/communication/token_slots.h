// The slots of one rank's tokens, each of which is for an expert: where their rows go, and where their results come
// from.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"

namespace npu {

class TokenSlots {
 public:
  static constexpr int32_t kShared = -1;  // the slot of a row for a shared expert

  struct Row {
    int32_t token, slot;
    int32_t expert;  // shared ones with ranks first
  };

  // ids: [tokens, slots]; mask: absent, [tokens] or [tokens, slots]. Throws for experts that do not exist, for one
  // twice in a token, and for a mask of tokens with gaps.
  TokenSlots(const char* op, const ExpertRanks& experts, const TensorView& ids, const TensorView& mask);

  // Rows in the order of the ranks that they go to, of the experts there, and of tokens.
  const std::vector<Row>& rows() const { return rows_; }
  // How many there are for each rank and expert.
  const std::vector<int64_t>& counts() const { return counts_; }

  bool IsActive(int64_t token) const { return active_[static_cast<size_t>(token)]; }
  bool IsActive(int64_t token, int64_t slot) const { return ExpertOf(token, slot) >= 0; }
  // The expert of a slot, or -1 if the slot is not active.
  int32_t ExpertOf(int64_t token, int64_t slot) const { return experts_[static_cast<size_t>(token * slots_ + slot)]; }
  // The row of a slot, or -1 if it has none.
  int64_t RowOf(int64_t token, int64_t slot) const { return row_of_slot_[static_cast<size_t>(token * slots_ + slot)]; }
  // The row of a token for a shared expert with ranks.
  int64_t RowOfShared(int64_t token, int64_t shared) const {
    return row_of_shared_[static_cast<size_t>(token * shared_ + shared)];
  }
  // The place of a slot's row among those of its expert, or -1.
  int32_t PlaceOf(int64_t token, int64_t slot) const { return place_[static_cast<size_t>(token * slots_ + slot)]; }

 private:
  void Read(const char* op, const ExpertRanks& experts, const TensorView& ids, const TensorView& mask);
  void Count(const char* op, const ExpertRanks& experts);
  void Order(const ExpertRanks& experts);

  int64_t tokens_, slots_, shared_;
  std::vector<int32_t> experts_;  // of the slots: a copy, since ids and mask may change
  std::vector<bool> active_;
  std::vector<int64_t> counts_;
  std::vector<int32_t> place_, row_of_slot_, row_of_shared_;
  std::vector<Row> rows_;
};

}  // namespace npu
