// Tensors [N, C, spatial dimensions] whose values are in memory as [N, spatial dimensions, C]: a value keeps its shape,
// and only the order of its elements differs (docs/decisions/0034).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"

namespace npu::channels_last {

inline constexpr DTypeSet kFloat32{DType::kFloat32};

// Of the operators of domain npu.channels_last: the positions of the inputs that are channels last, and whether the
// output is; others have their plain order. The definition gives those that may be.
inline std::vector<AttrDef> LayoutAttributes(std::vector<int64_t> inputs, bool output, std::vector<AttrDef> more = {}) {
  more.push_back(IntsAttribute("channels_last_inputs", std::move(inputs)));
  more.push_back(IntAttribute("channels_last_output", output ? 1 : 0));
  return more;
}

struct Layout {
  explicit Layout(const Attributes& attributes)
      : inputs(attributes.Ints("channels_last_inputs")), output(attributes.Bool("channels_last_output")) {}

  bool Of(int64_t input) const { return std::find(inputs.begin(), inputs.end(), input) != inputs.end(); }

  std::vector<int64_t> inputs;
  bool output;
};

// 4 × 4 elements, whose rows are `from_pitch` and `to_pitch` apart.
inline void TransposeBlock(const float* from, int64_t from_pitch, float* to, int64_t to_pitch) {
  using Four __attribute__((vector_size(16), aligned(4), may_alias)) = float;
  Four in[4];
  for (int i = 0; i < 4; ++i) in[i] = *reinterpret_cast<const Four*>(from + i * from_pitch);
  const Four a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
             b = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Four c = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5),
             d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  const Four out[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                       __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) *reinterpret_cast<Four*>(to + i * to_pitch) = out[i];
}

// `rows` rows to columns [first, stop) of them.
inline void TransposeColumns(const float* from, int64_t rows, int64_t columns, int64_t first, int64_t stop, float* to) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    int64_t c = first;
    for (; c + 4 <= stop; c += 4) TransposeBlock(from + r * columns + c, columns, to + c * rows + r, rows);
    for (; c < stop; ++c)
      for (int64_t i = r; i < r + 4; ++i) to[c * rows + i] = from[i * columns + c];
  }
  for (; r < rows; ++r)
    for (int64_t c = first; c < stop; ++c) to[c * rows + r] = from[r * columns + c];
}

// `count` matrices [rows, columns] to [columns, rows], on the pool: blocks of them fit the first-level cache.
inline void TransposeEach(const float* from, int64_t count, int64_t rows, int64_t columns, float* to) {
  constexpr int64_t kBlock = 16;
  const int64_t blocks = (columns + kBlock - 1) / kBlock;
  ParallelFor(count * blocks, std::max<int64_t>(1, kCheapGrain / (kBlock * rows)), [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t at = unit / blocks * rows * columns, first = unit % blocks * kBlock;
      TransposeColumns(from + at, rows, columns, first, std::min(columns, first + kBlock), to + at);
    }
  });
}

// The elements of x, of a rank of 3 or more, in the other order.
inline void ToChannelsLast(const TensorView& x, float* to) {
  TransposeEach(x.as<const float>(), x.shape[0], x.shape[1], x.shape.Elements(2, x.shape.rank()), to);
}
inline void ToPlain(const float* x, const TensorView& to) {
  TransposeEach(x, to.shape[0], to.shape.Elements(2, to.shape.rank()), to.shape[1], to.as<float>());
}

// The input channels last: itself, if it is so, or a copy.
inline const float* ReadChannelsLast(OpContext& ctx, const char* op, const TensorView& x, bool is_so) {
  if (is_so || !x) return x.as<const float>();
  float* copy = static_cast<float*>(ctx.Workspace(x.bytes()));
  ctx.Launch(op, [x, copy] { ToChannelsLast(x, copy); });
  return copy;
}

// Where to write the result `y` with channels last, and then its order if that is plain.
inline float* ResultsOf(OpContext& ctx, const TensorView& y, bool channels_last) {
  return channels_last ? y.as<float>() : static_cast<float*>(ctx.Workspace(y.bytes()));
}
inline void LaunchOrder(OpContext& ctx, const char* op, const float* results, const TensorView& y) {
  if (results != y.as<const float>()) ctx.Launch(op, [results, y] { ToPlain(results, y); });
}

}  // namespace npu::channels_last
