#include "ep/kernels/communication/token_slots.h"

#include <numeric>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu {

TokenSlots::TokenSlots(const char* op, const ExpertRanks& experts, const TensorView& ids, const TensorView& mask)
    : tokens_(ids.shape[0]),
      slots_(ids.shape[1]),
      shared_(experts.shared()),
      experts_(static_cast<size_t>(tokens_ * slots_), -1),
      active_(static_cast<size_t>(tokens_)),
      counts_(static_cast<size_t>(experts.ranks() * experts.of_rank())),
      place_(experts_.size(), -1),
      row_of_slot_(experts_.size(), -1),
      row_of_shared_(static_cast<size_t>(tokens_ * shared_), -1) {
  Read(op, experts, ids, mask);
  Count(op, experts);
  Order(experts);
}

void TokenSlots::Read(const char* op, const ExpertRanks& experts, const TensorView& ids, const TensorView& mask) {
  const CheckedNumbers expert(op, "expert_ids", ids.as<const int32_t>(), 0, experts.numbers());
  const bool of_tokens = mask.shape.rank() == 1;
  for (int64_t token = 0; token < tokens_; ++token) {
    bool active = !mask;
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const int64_t i = token * slots_ + slot;
      if (mask && (slot == 0 || !of_tokens)) active = ReadOnce(mask.as<const uint8_t>() + (of_tokens ? token : i)) != 0;
      if (!active) continue;
      active_[static_cast<size_t>(token)] = true;
      experts_[static_cast<size_t>(i)] = static_cast<int32_t>(expert[i]);
    }
    NPU_OP_CHECK(op, !mask || !of_tokens || token == 0 || !IsActive(token) || IsActive(token - 1),
                 "expected x_active_mask of true for the first tokens and false for the others, got true for token ",
                 token, " after false");
  }
}

void TokenSlots::Count(const char* op, const ExpertRanks& experts) {
  std::vector<int64_t> last(static_cast<size_t>(experts.routed()), -1);  // the token that has chosen each expert
  for (int64_t token = 0; token < tokens_; ++token) {
    if (!IsActive(token)) continue;
    for (int64_t shared = 0; shared < shared_; ++shared)
      row_of_shared_[static_cast<size_t>(token * shared_ + shared)] =
          static_cast<int32_t>(counts_[static_cast<size_t>(experts.EntryOfShared(shared))]++);
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const int32_t expert = ExpertOf(token, slot);
      if (expert < 0 || expert >= experts.routed()) continue;
      NPU_OP_CHECK(op, last[static_cast<size_t>(expert)] != token, "expected the experts of a token to differ, got ",
                   expert, " twice for token ", token);
      last[static_cast<size_t>(expert)] = token;
      place_[static_cast<size_t>(token * slots_ + slot)] =
          static_cast<int32_t>(counts_[static_cast<size_t>(experts.EntryOf(expert))]++);
    }
  }
}

void TokenSlots::Order(const ExpertRanks& experts) {
  std::vector<int64_t> starts(counts_.size());
  std::exclusive_scan(counts_.begin(), counts_.end(), starts.begin(), int64_t{0});
  rows_.resize(static_cast<size_t>(std::accumulate(counts_.begin(), counts_.end(), int64_t{0})));
  for (int64_t token = 0; token < tokens_; ++token) {
    if (!IsActive(token)) continue;
    const auto of_token = static_cast<int32_t>(token);
    for (int64_t shared = 0; shared < shared_; ++shared) {
      int32_t& row = row_of_shared_[static_cast<size_t>(token * shared_ + shared)];
      row += static_cast<int32_t>(starts[static_cast<size_t>(experts.EntryOfShared(shared))]);
      rows_[static_cast<size_t>(row)] = {of_token, kShared, static_cast<int32_t>(shared)};
    }
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const size_t at = static_cast<size_t>(token * slots_ + slot);
      if (place_[at] < 0) continue;
      const int64_t row = starts[static_cast<size_t>(experts.EntryOf(experts_[at]))] + place_[at];
      row_of_slot_[at] = static_cast<int32_t>(row);
      rows_[static_cast<size_t>(row)] = {of_token, static_cast<int32_t>(slot),
                                         static_cast<int32_t>(shared_ + experts_[at])};
    }
  }
}

}  // namespace npu
