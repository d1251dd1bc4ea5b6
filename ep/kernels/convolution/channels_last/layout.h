// Tensors [N, C, spatial dimensions] whose values are in memory as [N, spatial dimensions, C]: a value keeps its shape,
// and only the order of its elements differs (docs/decisions/0034).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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

// `count` matrices [rows, columns] to [columns, rows], on the pool.
template <class From, class To>
void TransposeEach(const From* from, int64_t count, int64_t rows, int64_t columns, To* to) {
  constexpr int64_t kRows = 512, kColumns = 16;  // of a part
  const int64_t down = (rows + kRows - 1) / kRows, across = (columns + kColumns - 1) / kColumns;
  const int64_t work = std::min(rows, kRows) * std::min(columns, kColumns);
  ParallelFor(count * down * across, std::max<int64_t>(1, kCheapGrain / work), [=](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t matrix = unit / across / down, row = unit / across % down * kRows,
                    column = unit % across * kColumns;
      const int64_t some = std::min(kRows, rows - row), first = matrix * rows * columns;
      simd::TransposeMatrix(from + first + row * columns + column, columns, some, std::min(kColumns, columns - column),
                            to + first + column * rows + row, rows, some);
    }
  });
}

inline int64_t Pixels(const TensorView& x) { return x.shape.Elements(2, x.shape.rank()); }

// The input x, of a rank of 3 or more, channels last: itself, if it is so, or a copy.
template <class T>
const T* ReadChannelsLast(OpContext& ctx, const char* op, const TensorView& x, bool is_so) {
  if (is_so || !x) return x.as<const T>();
  T* copy = static_cast<T*>(ctx.Workspace(static_cast<size_t>(x.elements()) * sizeof(T)));
  ctx.Launch(op, [=] { TransposeEach(x.as<const float>(), x.shape[0], x.shape[1], Pixels(x), copy); });
  return copy;
}

// Where to write the result `y`, and then its order if that is plain.
template <class T>
T* ResultsOf(OpContext& ctx, const TensorView& y, bool channels_last) {
  return channels_last ? y.as<T>() : static_cast<T*>(ctx.Workspace(static_cast<size_t>(y.elements()) * sizeof(T)));
}
template <class T>
void LaunchOrder(OpContext& ctx, const char* op, const T* results, const TensorView& y) {
  if (static_cast<const void*>(results) == y.data) return;
  ctx.Launch(op, [=] { TransposeEach(results, y.shape[0], Pixels(y), y.shape[1], y.as<float>()); });
}

}  // namespace npu::channels_last
