// The steps of one direction of a recurrent layer, for some of the sequences of a batch. The inputs of a block of steps
// are multiplied at once; each step then multiplies the hidden state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/elementwise/upcast_row.h"
#include "ep/kernels/recurrent/layer.h"
#include "ep/kernels/recurrent/weights.h"
#include "ep/kernels/row_block.h"

namespace npu::recurrent {

// The sequences that are computed together, between two steps.
template <class T>
struct Sequences {
  using C = ComputeType<T>;
  Sequences(int64_t rows, int64_t hidden_size, int64_t gate_columns, bool has_memory)
      : count(rows),
        width(hidden_size),
        hidden(size(width)),
        memory(has_memory ? size(width) : 0),
        gates(size(gate_columns)) {
    if constexpr (kIsHalf<T>) rounded_.resize(size(width));
  }

  // f(row) for every sequence that has this step, on the pool.
  template <class F>
  void ForEachActive(const F& f) const {
    ParallelFor(count, RowGrain(8 * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (step < lengths[static_cast<size_t>(row)]) f(row);
      }
    });
  }
  // Values [count, width] as a product takes them, until the next call.
  const T* Rounded(const std::vector<C>& values) {
    if constexpr (kIsHalf<T>) {
      FromFloat(values.data(), rounded_.data(), static_cast<int64_t>(values.size()));
      return rounded_.data();
    } else {
      return values.data();
    }
  }

  int64_t count, width, step = 0;
  std::vector<C> hidden, memory;  // [count, width]; memory only of cells that have one
  std::vector<C> gates;           // scratch of a step, [count, gate columns]
  std::vector<int64_t> lengths;

 private:
  size_t size(int64_t columns) const { return static_cast<size_t>(count * columns); }
  std::vector<T> rounded_;
};

template <class T>
struct Outputs {  // null: not requested
  T *y, *hidden, *memory;
};

// A Cell has
//   static constexpr Kind kKind
//   Product<T> from_input                     of the gates of an input
//   std::vector<C> bias                       what is added to these
//   void Step(const C* from_input, Sequences<T>&) const      [count, gates * hidden]
// and advances the states of all active sequences by a step.
template <class T, class Cell>
class Steps {
 public:
  using C = ComputeType<T>;
  Steps(const Layer& layer, const Cell& cell, int64_t direction, bool reverse, const Outputs<T>& outputs)
      : layer_(layer), cell_(cell), direction_(direction), reverse_(reverse), outputs_(outputs) {}

  // Sequences [first, first + count).
  void Run(int64_t first, int64_t count) const {
    const int64_t columns = static_cast<int64_t>(cell_.bias.size());
    Sequences<T> rows(count, layer_.hidden, columns, Cell::kKind.memory);
    int64_t steps = 0;
    for (int64_t row = first; row < first + count; ++row) {
      rows.lengths.push_back(layer_.lengths ? layer_.CheckedLengths(Cell::kKind.op)[row] : layer_.steps);
      steps = std::max(steps, rows.lengths.back());
    }
    LoadState(layer_.initial_hidden, first, rows.lengths, rows.hidden);
    LoadState(layer_.initial_memory, first, rows.lengths, rows.memory);
    const int64_t block = std::clamp<int64_t>(kBlockElements / (count * columns), 1, std::max<int64_t>(steps, 1));
    std::vector<T> inputs(static_cast<size_t>(block * count * layer_.inputs));
    std::vector<C> from_input(static_cast<size_t>(block * count * columns));
    for (int64_t begin = 0; begin < steps; begin += block) {
      const int64_t end = std::min(begin + block, steps);
      Gather(rows, first, begin, end, inputs.data());
      cell_.from_input(inputs.data(), (end - begin) * count, from_input.data());
      AddBias((end - begin) * count, from_input.data());
      for (rows.step = begin; rows.step < end; ++rows.step) {
        cell_.Step(from_input.data() + (rows.step - begin) * count * columns, rows);
        if (outputs_.y != nullptr) StoreStep(rows, first);
      }
    }
    if (outputs_.y != nullptr) ClearPadding(rows, first);
    StoreState(rows.hidden, first, outputs_.hidden);
    StoreState(rows.memory, first, outputs_.memory);
  }

 private:
  static constexpr int64_t kBlockElements = 256 << 10;  // of the gates of a block: a second-level cache of floats

  // The step of the sequence at which it is read and written; sequences are reversed within their lengths.
  int64_t TimeOf(const Sequences<T>& rows, int64_t row, int64_t step) const {
    return reverse_ ? rows.lengths[static_cast<size_t>(row)] - 1 - step : step;
  }

  void Gather(const Sequences<T>& rows, int64_t first, int64_t begin, int64_t end, T* inputs) const {
    const T* x = layer_.x.template as<const T>();
    ParallelFor((end - begin) * rows.count, RowGrain(layer_.inputs), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t row = i % rows.count, time = TimeOf(rows, row, begin + i / rows.count);
        T* into = inputs + i * layer_.inputs;
        if (time < 0 || time >= layer_.steps) {
          std::fill_n(into, layer_.inputs, T{});  // beyond its end: nothing reads the result
        } else {
          std::copy_n(x + time * layer_.x_step + (first + row) * layer_.x_row, layer_.inputs, into);
        }
      }
    });
  }
  void AddBias(int64_t rows, C* values) const {
    const C* bias = cell_.bias.data();
    const int64_t columns = static_cast<int64_t>(cell_.bias.size());
    ParallelFor(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        C* to = values + row * columns;
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) to[i] += bias[i];
      }
    });
  }
  void StoreStep(const Sequences<T>& rows, int64_t first) const {
    rows.ForEachActive([&](int64_t row) {
      RoundRow(rows.hidden.data() + row * rows.width, YAt(TimeOf(rows, row, rows.step), first + row), rows.width);
    });
  }
  void ClearPadding(const Sequences<T>& rows, int64_t first) const {
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t time = rows.lengths[static_cast<size_t>(row)]; time < layer_.steps; ++time)
        std::fill_n(YAt(time, first + row), rows.width, T{});
    }
  }
  T* YAt(int64_t time, int64_t row) const {
    return outputs_.y + time * layer_.y_step + direction_ * layer_.y_direction + row * layer_.y_row;
  }

  int64_t StateOffset(int64_t row) const { return direction_ * layer_.state_direction + row * layer_.state_row; }
  // A sequence without steps has the state 0 before and after, as in onnxruntime.
  void LoadState(const TensorView& given, int64_t first, const std::vector<int64_t>& lengths,
                 std::vector<C>& state) const {
    if (!given) return;
    const int64_t width = layer_.hidden, count = static_cast<int64_t>(state.size()) / width;
    for (int64_t row = 0; row < count; ++row) {
      if (lengths[static_cast<size_t>(row)] == 0) continue;
      const T* from = given.as<const T>() + StateOffset(first + row);
      for (int64_t i = 0; i < width; ++i) state[static_cast<size_t>(row * width + i)] = Upcast(from[i]);
    }
  }
  void StoreState(const std::vector<C>& state, int64_t first, T* to) const {
    if (to == nullptr) return;
    const int64_t width = layer_.hidden, count = static_cast<int64_t>(state.size()) / width;
    for (int64_t row = 0; row < count; ++row)
      RoundRow(state.data() + row * width, to + StateOffset(first + row), width);
  }

  const Layer& layer_;
  const Cell& cell_;
  int64_t direction_;
  bool reverse_;
  Outputs<T> outputs_;
};

}  // namespace npu::recurrent
