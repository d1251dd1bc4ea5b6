// Which tokens and states npu_fused_causal_conv1d reads and writes.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu::causal_conv1d {

constexpr const char* kOp = "npu_fused_causal_conv1d";

// The tensors of numbers that say it. They are data of the call and may be anything.
struct Numbers {
  TensorView starts, rows, modes, accepted, computed, first, last, initial;
};

struct Options {
  bool silu, residual, pangu;
  int64_t pad, block_size;
};

struct Sizes {
  int64_t tokens, channels, taps, rows, entries;  // entries of a row of the states
  int64_t sequences, length;                      // of each sequence, without starts

  int64_t history() const { return taps - 1; }
};

// What a row of the states gets: the entries that the state and so many tokens end with.
struct Store {
  int64_t row, tokens;
};

struct Sequence {
  int64_t number, begin, count;
  int64_t row;               // of its state, which begins at entry `offset`; -1: zeros
  int64_t offset;            // 0 for zeros
  int64_t reset;             // tokens whose convolution is 0
  std::vector<Store> ended;  // blocks that end before its last token
  int64_t last_row;          // of what it ends with; -1: not stored
};

// What was checked of the numbers, in sequences that are not skipped.
class Plan {
 public:
  Plan(const Sizes& sizes, const Options& options, const Numbers& numbers);

  const std::vector<Sequence>& sequences() const { return sequences_; }

 private:
  std::vector<int64_t> Starts() const;
  void Add(int64_t i, int64_t begin, int64_t count);
  void FindBlocks(int64_t computed, Sequence& sequence) const;
  void FindState(int64_t computed, Sequence& sequence) const;
  void CheckRow(int64_t row) const;
  // A sequence is convolved while others store theirs: the rows that it writes belong to it alone.
  void CheckOwners() const;

  Sizes sizes_;
  Options options_;
  Numbers numbers_;
  std::vector<Sequence> sequences_;
};

}  // namespace npu::causal_conv1d
