// A recurrent layer: its arguments as ONNX's LSTM, GRU and RNN have them, checked.
#pragma once

#include <optional>

#include "ep/kernels/checked_numbers.h"

namespace npu::recurrent {

enum class Direction { kForward, kReverse, kBidirectional };

// The attributes that do not depend on shapes.
struct Settings {
  Settings(const char* op, const Attributes& attributes);

  int64_t directions() const { return direction == Direction::kBidirectional ? 2 : 1; }
  bool reverse(int64_t d) const { return direction == Direction::kReverse || d == 1; }

  Direction direction;
  bool batch_first;  // layout 1
  std::optional<int64_t> hidden_size;
  double clip;  // infinity: none
};

// What one kind of layer has.
struct Kind {
  const char* op;
  int64_t gates;
  bool memory;     // a second state, as LSTM's cell
  bool peepholes;  // [3 * hidden]
};

// The inputs and sizes of one call.
struct Layer {
  // Throws "[op] expected …, got …". The shapes of weights that a kernel keeps are given, others are the inputs'.
  Layer(const Kind& kind, const Settings& settings, OpContext& ctx, const TensorView& w, const TensorView& r);

  int64_t directions, steps, batch, inputs, hidden;
  TensorView x, w, r, bias, lengths, initial_hidden, initial_memory, peepholes;
  CheckedNumbers<int32_t> CheckedLengths(const char* op) const {
    return {op, "sequence_lens", lengths.as<const int32_t>(), 0, steps + 1};
  }

  Shape output;  // Y
  Shape state;   // Y_h and Y_c
  // Distances in elements of X, Y and the states.
  int64_t x_step, x_row, y_step, y_direction, y_row, state_direction, state_row;
};

}  // namespace npu::recurrent
