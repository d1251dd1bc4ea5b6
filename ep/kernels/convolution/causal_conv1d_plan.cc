#include "ep/kernels/convolution/causal_conv1d_plan.h"

#include <algorithm>
#include <utility>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu::causal_conv1d {

Plan::Plan(const Sizes& sizes, const Options& options, const Numbers& numbers)
    : sizes_(sizes), options_(options), numbers_(numbers) {
  const std::vector<int64_t> starts = Starts();
  for (int64_t i = 0; i < sizes.sequences; ++i) {
    const auto at = static_cast<size_t>(i);
    if (starts[at + 1] > starts[at]) Add(i, starts[at], starts[at + 1] - starts[at]);
  }
  CheckOwners();
}

std::vector<int64_t> Plan::Starts() const {
  std::vector<int64_t> starts(static_cast<size_t>(sizes_.sequences + 1));
  int64_t least = 0;
  for (int64_t i = 0; i <= sizes_.sequences; ++i) {
    const int64_t start = numbers_.starts ? ReadOnce(numbers_.starts, i) : i * sizes_.length;
    NPU_OP_CHECK(kOp, start >= least && start <= sizes_.tokens,
                 "expected query_start_loc that does not decrease, entry ", i, " in [", least, ", ", sizes_.tokens,
                 "], got ", start);
    starts[static_cast<size_t>(i)] = least = start;
  }
  return starts;
}

void Plan::Add(int64_t i, int64_t begin, int64_t count) {
  Sequence sequence{i, begin, count, i, 0, 0, {}, i};
  int64_t computed = 0;
  if (numbers_.computed) {
    computed = ReadOnce(numbers_.computed, i);
    NPU_OP_CHECK(kOp, computed >= 0, "expected num_computed_tokens of at least 0, got ", computed, " for sequence ", i);
    if (options_.pangu) sequence.reset = std::clamp<int64_t>(sizes_.history() - computed, 0, count);
  }
  if (numbers_.initial) {
    FindBlocks(computed, sequence);
  } else if (numbers_.rows) {
    sequence.row = sequence.last_row = ReadOnce(numbers_.rows, i);
  }
  if (sequence.row == options_.pad) return;
  CheckRow(sequence.row);
  if (sequence.last_row == options_.pad)
    sequence.last_row = -1;
  else
    CheckRow(sequence.last_row);
  for (const Store& ended : sequence.ended) CheckRow(ended.row);
  FindState(computed, sequence);
  sequences_.push_back(std::move(sequence));
}

void Plan::FindBlocks(int64_t computed, Sequence& sequence) const {
  const int64_t i = sequence.number, width = numbers_.rows.shape[1], size = options_.block_size;
  const auto check = [](const char* name, int64_t number, const char* close, int64_t allowed, bool right) {
    NPU_OP_CHECK(kOp, right, "expected ", name, " in [0, ", allowed, close, ", got ", number);
  };
  const int64_t first = ReadOnce(numbers_.first, i), last = ReadOnce(numbers_.last, i),
                initial = ReadOnce(numbers_.initial, i);
  check("block_idx_last_scheduled_token", last, ")", width, last >= 0 && last < width);
  check("block_idx_first_scheduled_token", first, "]", last, first >= 0 && first <= last);
  const int64_t most = std::min(first + 1, last);
  check("initial_state_idx", initial, "]", most, initial >= 0 && initial <= most);
  const auto row = [&](int64_t block) { return ReadOnce(numbers_.rows, i * width + block); };
  sequence.row = row(initial);
  if (sequence.row == options_.pad) return;
  sequence.last_row = row(last);
  const int64_t first_end = size - computed % size, blocks = last - first,
                ends = sequence.count > first_end ? (sequence.count - 1 - first_end) / size + 1 : 0;
  NPU_OP_CHECK(kOp, blocks <= ends, "expected at most ", ends, " blocks that end in sequence ", i, ", got ", blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t to = row(first + block);
    if (to != options_.pad) sequence.ended.push_back({to, first_end + (ends - blocks + block) * size});
  }
}

void Plan::FindState(int64_t computed, Sequence& sequence) const {
  const int64_t i = sequence.number, mode = numbers_.modes ? ReadOnce(numbers_.modes, i) : 1;
  NPU_OP_CHECK(kOp, mode == 0 || mode == 1, "expected initial_state_mode 0 or 1, got ", mode, " for sequence ", i);
  if (mode == 0 || (numbers_.computed && computed == 0)) {
    sequence.row = -1;
    return;
  }
  sequence.offset = sizes_.entries - sizes_.history();
  if (!numbers_.accepted) return;
  const int64_t most = sequence.offset + 1, accepted = ReadOnce(numbers_.accepted, i);
  NPU_OP_CHECK(kOp, accepted >= 1 && accepted <= most, "expected num_accepted_tokens in [1, ", most, "] for sequence ",
               i, ", got ", accepted);
  sequence.offset = accepted - 1;
}

void Plan::CheckRow(int64_t row) const {
  NPU_OP_CHECK(kOp, row >= 0 && row < sizes_.rows, "expected cache_indices in [0, ", sizes_.rows, "), got ", row);
}

void Plan::CheckOwners() const {
  struct Written {
    int64_t row, sequence;
  };
  std::vector<Written> written;
  for (const Sequence& sequence : sequences_) {
    if (sequence.last_row >= 0) written.push_back({sequence.last_row, sequence.number});
    for (const Store& ended : sequence.ended) written.push_back({ended.row, sequence.number});
  }
  std::sort(written.begin(), written.end(), [](const Written& a, const Written& b) {
    return a.row != b.row ? a.row < b.row : a.sequence < b.sequence;
  });
  const auto check = [](bool right, int64_t row, int64_t a, int64_t b) {
    NPU_OP_CHECK(kOp, right, "expected cache_indices that give each sequence rows of its own, got ", row,
                 " of sequences ", a, " and ", b);
  };
  for (size_t i = 1; i < written.size(); ++i)
    check(written[i].row != written[i - 1].row, written[i].row, written[i - 1].sequence, written[i].sequence);
  for (const Sequence& sequence : sequences_) {
    if (sequence.row < 0) continue;
    const auto found = std::lower_bound(written.begin(), written.end(), sequence.row,
                                        [](const Written& a, int64_t row) { return a.row < row; });
    if (found != written.end() && found->row == sequence.row)
      check(found->sequence == sequence.number, sequence.row, sequence.number, found->sequence);
  }
}

}  // namespace npu::causal_conv1d
