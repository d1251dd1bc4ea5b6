// Rows on their way to the experts of other ranks, or back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ep/kernels/communication/expert_ranks.h"
#include "ep/kernels/communication/scratch.h"

namespace npu {

// What travels behind a row.
struct RowNote {
  float scale = 0.0f;   // of a quantised row
  float weight = 0.0f;  // of its expert
  int32_t token = 0, slot = 0;
};

// What the second version of the dispatch gives the combination for every row: its rank, token and slot, then zeros.
inline constexpr int64_t kRowNoteWords = 128;

// Records of a row and its note, one behind the other, ordered by rank.
class RowRecords {
 public:
  RowRecords(int64_t rows, size_t row_bytes)
      : note_at_((row_bytes + sizeof(RowNote) - 1) / sizeof(RowNote) * sizeof(RowNote)),
        memory_(Scratch(static_cast<size_t>(rows) * bytes())) {}

  size_t bytes() const { return note_at_ + sizeof(RowNote); }
  char* row(int64_t i) const { return memory_.get() + static_cast<size_t>(i) * bytes(); }
  RowNote& note(int64_t i) const { return *reinterpret_cast<RowNote*>(row(i) + note_at_); }

 private:
  size_t note_at_;
  std::unique_ptr<char[]> memory_;
};

// Sends the records of `sent` rows for each rank and expert, ordered so, and returns those that arrive, of which there
// are `received`. Without other ranks they are the same.
RowRecords ExchangeRows(const char* op, Communicator* group, RowRecords leaving, const std::vector<int64_t>& sent,
                        const std::vector<int64_t>& received, size_t row_bytes);

// Numbers for each rank and expert, of which every rank gets those of itself from all.
std::vector<int64_t> ExchangeCounts(const char* op, Communicator* group, const std::vector<int64_t>& sent);

// Calls f(expert, rank, first, count, place) for the rows of each of this rank's experts and each rank, by expert:
// those from row `first` on in the order of ranks and experts are those from row `place` on in the order of experts and
// ranks.
void ForEachExpertBlock(const ExpertRanks& experts, const std::vector<int64_t>& counts,
                        const std::function<void(int64_t, int64_t, int64_t, int64_t, int64_t)>& f);

}  // namespace npu
