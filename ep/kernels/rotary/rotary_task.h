// Rotary position embedding of the heads of a tensor, by tables of positions. Computed in float and rounded once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/indexing/index.h"
#include "ep/kernels/row_block.h"

namespace npu {

// A tensor as [batch, heads, rows, size] with strides in elements.
struct Heads {
  int64_t batch, heads, rows, size;
  int64_t batch_stride, head_stride, row_stride;

  // Where a token's row begins, of head 0.
  int64_t RowAt(int64_t token) const { return token / rows * batch_stride + token % rows * row_stride; }
  static Heads Separate(int64_t batch, int64_t heads, int64_t rows, int64_t size) {  // [batch, heads, rows, size]
    return {batch, heads, rows, size, heads * rows * size, rows * size, size};
  }
  static Heads Joined(int64_t batch, int64_t heads, int64_t rows, int64_t size) {  // [batch, rows, heads * size]
    return {batch, heads, rows, size, heads * rows * size, size, heads * size};
  }
};

// Rotates the first columns of each head with the rows of tables of cosines and sines; the others are copied.
struct RotaryTask {
  const char* op;
  TensorView x, cosines, sines, y;
  Heads in, out;    // of one shape
  int64_t rotated;  // columns
  bool interleaved;
  const int64_t* positions;  // [batch, rows], or null: tables have a row for each token, or for each of one entry
  int64_t table_rows;

  template <class T>
  void Run() const {
    ParallelFor(in.batch * in.rows, RowGrain(in.heads * in.size), [this](int64_t begin, int64_t end) {
      RowScratch cos(rotated / 2), sin(rotated / 2), values(in.size), results(rotated);
      for (int64_t token = begin; token < end; ++token) {
        const int64_t row = positions == nullptr ? token % table_rows : CheckedIndex(op, positions, token, table_rows);
        ToFloat(cosines.as<const T>() + row * (rotated / 2), cos.values(), rotated / 2);
        ToFloat(sines.as<const T>() + row * (rotated / 2), sin.values(), rotated / 2);
        const int64_t from = in.RowAt(token), to = out.RowAt(token);
        for (int64_t head = 0; head < in.heads; ++head) {
          ToFloat(x.as<const T>() + from + head * in.head_stride, values.values(), in.size);
          Rotate(values.values(), cos.values(), sin.values(), results.values());
          std::copy_n(results.values(), rotated, values.values());
          FromFloat(values.values(), y.as<T>() + to + head * out.head_stride, in.size);
        }
      }
    });
  }

 private:
  void Rotate(const float* x, const float* cos, const float* sin, float* y) const {
    const int64_t half = rotated / 2, step = interleaved ? 2 : 1, way = interleaved ? 1 : half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i * step], b = x[i * step + way];
      y[i * step] = a * cos[i] - b * sin[i];
      y[i * step + way] = b * cos[i] + a * sin[i];
    }
  }
};

}  // namespace npu
