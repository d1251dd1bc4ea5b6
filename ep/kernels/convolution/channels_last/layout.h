// Tensors [N, C, spatial dimensions] whose values are in memory as [N, spatial dimensions, C]: a value keeps its shape,
// and only the order of its elements differs (docs/decisions/0034).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "ep/kernels/convert.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/gemm/microkernel.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/transposed_block.h"

namespace npu::channels_last {

inline constexpr DTypeSet kFloat32{DType::kFloat32};

// Of the operators of domain npu.channels_last: the positions of the inputs that are channels last, and whether the
// output is; others have their plain order. The definition gives those that may be.
inline std::vector<AttrDef> LayoutAttributes(std::vector<int64_t> inputs, bool output, std::vector<AttrDef> more = {}) {
  more.push_back(IntsAttribute("channels_last_inputs", std::move(inputs)));
  more.push_back(IntAttribute("channels_last_output", output ? 1 : 0));
  return more;
}

// The order that a node's values have, and the type of those that are channels last: float32, or bfloat16 where the
// session multiplies it. All operators of a session agree, since each follows the same option on the same machine.
struct Layout {
  explicit Layout(const KernelInfo& info)
      : inputs(info.attributes.Ints("channels_last_inputs")),
        output(info.attributes.Bool("channels_last_output")),
        rounds(info.float32_products == DType::kBFloat16 && gemm::Bf16Kernel() != nullptr) {}

  bool Of(int64_t input) const { return std::find(inputs.begin(), inputs.end(), input) != inputs.end(); }

  // f(T{}), where T is the type of values that are channels last.
  template <class F>
  void WithStored(const F& f) const {
    rounds ? f(BFloat16{}) : f(float{});
  }

  std::vector<int64_t> inputs;
  bool output;
  bool rounds;  // to bfloat16
};

using Four __attribute__((vector_size(16), aligned(4), may_alias)) = float;

inline Four LoadFour(const float* from) { return *reinterpret_cast<const Four*>(from); }
inline Four LoadFour(const BFloat16* from) {
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Four)(__builtin_convertvector(halves, Words) << 16);
}

// Rows of four elements, `pitch` apart.
inline void StoreFours(const Four (&rows)[4], float* to, int64_t pitch) {
  for (int i = 0; i < 4; ++i) *reinterpret_cast<Four*>(to + i * pitch) = rows[i];
}
// Rounds as FromFloat does, with which a 1 × 1 convolution of 96 channels takes 1.2 times as long.
inline void StoreFours(const Four (&rows)[4], BFloat16* to, int64_t pitch) {
  typedef float Floats __attribute__((vector_size(64)));
  typedef uint32_t Words __attribute__((vector_size(64)));
  typedef uint16_t Halves __attribute__((vector_size(32)));
  Floats values;
  std::memcpy(&values, rows, sizeof values);
  const Words bits = (Words)values, rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Halves halves = __builtin_convertvector((values == values ? rounded : bits | 0x400000u) >> 16, Halves);
  for (int i = 0; i < 4; ++i)
    std::memcpy(to + i * pitch, reinterpret_cast<const BFloat16*>(&halves) + 4 * i, 4 * sizeof(BFloat16));
}

// 4 × 4 elements, whose rows are `from_pitch` and `to_pitch` apart; rows from `count` on are zeros.
template <class From, class To>
void TransposeBlock(const From* from, int64_t from_pitch, int64_t count, To* to, int64_t to_pitch) {
  Four in[4];
  for (int i = 0; i < 4; ++i) in[i] = i < count ? LoadFour(from + i * from_pitch) : Four{};
  const Four a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
             b = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Four c = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5),
             d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  const Four out[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                       __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
  StoreFours(out, to, to_pitch);
}

// Few planes, as of an image, to pixels of four elements.
inline void TransposeImage(const float* from, int64_t rows, int64_t columns, int64_t first, int64_t stop,
                           BFloat16* to) {
  uint64_t pixels[16];
  for (int64_t begin = first; begin < stop; begin += 16) {
    const int64_t count = std::min<int64_t>(16, stop - begin);
    for (int64_t r = 0; r < rows; ++r) {
      const float* plane = from + r * columns + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        pixels[i] = (r == 0 ? 0 : pixels[i]) | static_cast<uint64_t>(internal::FloatToBFloat16(plane[i])) << (16 * r);
    }
    std::memcpy(to + begin * 4, pixels, static_cast<size_t>(count) * sizeof(uint64_t));
  }
}

// Few rows to columns [first, stop) of them, which are stored with `pitch` elements: zeros beyond the rows.
template <class From, class To>
void TransposeFew(const From* from, int64_t rows, int64_t columns, int64_t first, int64_t stop, To* to, int64_t pitch) {
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, BFloat16>)
    if (rows > 0 && pitch == 4) return TransposeImage(from, rows, columns, first, stop, to);
  int64_t c = first;
  for (; pitch == 4 && c + 4 <= stop; c += 4) TransposeBlock(from + c, columns, rows, to + c * 4, 4);
  for (; c < stop; ++c)
    for (int64_t i = 0; i < pitch; ++i)
      to[c * pitch + i] = i < rows ? FromFloat<To>(ToFloat(from[i * columns + c])) : To{};
}

// `count` matrices [rows, columns] to [columns, pitch], on the pool.
template <class From, class To>
void TransposeEach(const From* from, int64_t count, int64_t rows, int64_t columns, To* to, int64_t pitch) {
  constexpr int64_t kRows = 512, kColumns = 16, kFew = 4;  // of a part
  const int64_t down = (rows + kRows - 1) / kRows, across = (columns + kColumns - 1) / kColumns;
  const int64_t work = std::min(rows, kRows) * std::min(columns, kColumns);
  ParallelFor(count * down * across, std::max<int64_t>(1, kCheapGrain / work), [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t matrix = unit / across / down, row = unit / across % down * kRows, first = unit % across * kColumns;
      const int64_t stop = std::min(columns, first + kColumns);
      const From* source = from + matrix * rows * columns;
      To* result = to + matrix * columns * pitch;
      if (rows <= kFew && pitch <= kFew) {
        TransposeFew(source, rows, columns, first, stop, result, pitch);
        continue;
      }
      const bool last = row + kRows >= rows;
      simd::TransposeMatrix(source + row * columns + first, columns, last ? rows - row : kRows, stop - first,
                            result + first * pitch + row, pitch, last ? pitch - row : kRows);
    }
  });
}

inline int64_t Pixels(const TensorView& x) { return x.shape.Elements(2, x.shape.rank()); }

// The input x, of a rank of 3 or more, channels last: itself, if it is so, or a copy whose pixels have `stored`
// channels, zeros beyond their own.
template <class T>
const T* ReadChannelsLast(OpContext& ctx, const char* op, const TensorView& x, bool is_so, int64_t stored) {
  if (is_so || !x) return x.as<const T>();
  const int64_t elements = Shape{x.shape[0], Pixels(x), stored}.Elements();
  T* copy = static_cast<T*>(ctx.Workspace(static_cast<size_t>(elements) * sizeof(T)));
  ctx.Launch(op, [=] { TransposeEach(x.as<const float>(), x.shape[0], x.shape[1], Pixels(x), copy, stored); });
  return copy;
}
template <class T>
const T* ReadChannelsLast(OpContext& ctx, const char* op, const TensorView& x, bool is_so) {
  return ReadChannelsLast<T>(ctx, op, x, is_so, x ? x.shape[1] : 0);
}

// Where to write the result `y`, and then its order if that is plain.
template <class T>
T* ResultsOf(OpContext& ctx, const TensorView& y, bool channels_last) {
  return channels_last ? y.as<T>() : static_cast<T*>(ctx.Workspace(static_cast<size_t>(y.elements()) * sizeof(T)));
}
template <class T>
void LaunchOrder(OpContext& ctx, const char* op, const T* results, const TensorView& y) {
  if (static_cast<const void*>(results) == y.data) return;
  ctx.Launch(op, [=] { TransposeEach(results, y.shape[0], Pixels(y), y.shape[1], y.as<float>(), Pixels(y)); });
}

}  // namespace npu::channels_last
