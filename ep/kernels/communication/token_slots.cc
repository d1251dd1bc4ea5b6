#include "ep/kernels/communication/token_slots.h"

#include <numeric>

namespace npu {

TokenSlots::TokenSlots(const char* op, const ExpertRanks& experts, const TensorView& ids, const TensorView& mask)
    : tokens_(ids.shape[0]),
      slots_(ids.shape[1]),
      shared_(experts.shared()),
      mask_(mask),
      active_(static_cast<size_t>(tokens_)),
      counts_(static_cast<size_t>(experts.ranks() * experts.of_rank())),
      place_(static_cast<size_t>(tokens_ * slots_), -1),
      row_of_slot_(place_),
      row_of_shared_(static_cast<size_t>(tokens_ * shared_), -1) {
  SetActive(op);
  Count(op, experts, ids.as<const int32_t>());
  Order(experts, ids.as<const int32_t>());
}

bool TokenSlots::IsActive(int64_t token, int64_t slot) const {
  if (!mask_) return true;
  const uint8_t* given = mask_.as<const uint8_t>();
  return given[mask_.shape.rank() == 1 ? token : token * slots_ + slot] != 0;
}

void TokenSlots::SetActive(const char* op) {
  for (int64_t token = 0; token < tokens_; ++token) {
    for (int64_t slot = 0; slot < slots_; ++slot)
      if (IsActive(token, slot)) active_[static_cast<size_t>(token)] = true;
    NPU_CHECK(!mask_ || mask_.shape.rank() == 2 || token == 0 || !IsActive(token) || IsActive(token - 1), "[", op,
              "] expected x_active_mask of true for the first tokens and false for the others, got true for token ",
              token, " after false");
  }
}

void TokenSlots::Count(const char* op, const ExpertRanks& experts, const int32_t* ids) {
  for (int64_t i = 0; i < tokens_ * slots_; ++i)
    NPU_CHECK(!IsActive(i / slots_, i % slots_) || (ids[i] >= 0 && ids[i] < experts.numbers()), "[", op,
              "] expected expert_ids in [0, ", experts.numbers(), "), got ", ids[i]);
  std::vector<int64_t> last(static_cast<size_t>(experts.routed()), -1);  // the token that has chosen each expert
  for (int64_t token = 0; token < tokens_; ++token) {
    if (!IsActive(token)) continue;
    for (int64_t shared = 0; shared < shared_; ++shared)
      row_of_shared_[static_cast<size_t>(token * shared_ + shared)] =
          static_cast<int32_t>(counts_[static_cast<size_t>(experts.EntryOfShared(shared))]++);
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const int32_t expert = ids[token * slots_ + slot];
      if (!IsActive(token, slot) || expert >= experts.routed()) continue;
      NPU_CHECK(last[static_cast<size_t>(expert)] != token, "[", op,
                "] expected the experts of a token to differ, got ", expert, " twice for token ", token);
      last[static_cast<size_t>(expert)] = token;
      place_[static_cast<size_t>(token * slots_ + slot)] =
          static_cast<int32_t>(counts_[static_cast<size_t>(experts.EntryOf(expert))]++);
    }
  }
}

void TokenSlots::Order(const ExpertRanks& experts, const int32_t* ids) {
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
      const int64_t row = starts[static_cast<size_t>(experts.EntryOf(ids[at]))] + place_[at];
      row_of_slot_[at] = static_cast<int32_t>(row);
      rows_[static_cast<size_t>(row)] = {of_token, static_cast<int32_t>(slot), static_cast<int32_t>(shared_ + ids[at])};
    }
  }
}

}  // namespace npu
