// Group normalisation followed by an activation: shared by npu_group_norm_silu and npu_group_norm_swish.
#pragma once

#include <algorithm>

#include "ep/kernels/normalization/moments.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

struct GroupNormCall {
  const char* op;
  TensorView input, weight, bias;  // weight and bias: [C], of one dtype, or not present
  int64_t groups;
  double epsilon;
  DType statistics;  // dtype of mean and rstd
};

// Checks the shapes; messages call the groups attribute `groups_name`.
inline void CheckGroupNorm(const GroupNormCall& c, const char* groups_name) {
  const Shape& shape = c.input.shape;
  NPU_OP_CHECK(c.op, shape.rank() >= 2, "expected input of rank >= 2, got ", shape);
  // Every number divides 0 channels, but mean and rstd of that many groups need not fit in memory.
  NPU_OP_CHECK(c.op, c.groups > 0 && c.groups <= std::max<int64_t>(shape[1], 1) && shape[1] % c.groups == 0,
               "expected ", groups_name, " to be a positive divisor of the ", shape[1], " channels, got ", c.groups);
  for (const auto& [name, t] : {std::pair{"weight", &c.weight}, std::pair{"bias", &c.bias}}) {
    NPU_OP_CHECK(c.op, !*t || t->shape == Shape{shape[1]}, "expected ", name, " of shape ", Shape{shape[1]}, ", got ",
                 t->shape);
  }
}

namespace internal {

template <class X, class Weight, class F>
struct GroupNormTask {
  const X* x;
  const Weight *weight, *bias;
  X* y;
  void *mean, *rstd;
  DType statistics;
  int64_t groups, channels, spatial;  // channels of one group, elements of one channel
  double epsilon;
  F activation;

  void Rows(int64_t begin, int64_t end) const {
    const int64_t n = channels * spatial;
    InBlock<X> in;
    OutBlock<X> out;
    alignas(64) float scale[kRowBlock], shift[kRowBlock];
    for (int64_t row = begin; row < end; ++row) {
      const X* source = x + row * n;
      const auto load = [&](int64_t at, int64_t count) { return in.Load(source + at, count); };
      const Moments m = RowMoments(n, epsilon, load);
      Store(mean, row, m.mean);
      Store(rstd, row, m.rstd);
      if (y == nullptr) continue;
      const int64_t first_channel = row % groups * channels;
      ForEachBlock(n, [&](int64_t at, int64_t count) {
        BroadcastChannels(first_channel, at, count, m.rstd, scale, shift);
        const float* v = load(at, count);
        float* r = out.Values(y + row * n + at);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) r[i] = activation((v[i] - m.mean) * scale[i] + shift[i]);
        out.Commit(y + row * n + at, count);
      });
    }
  }

 private:
  // Expands the channels' scale and shift to the elements of a block, so that one loop serves channels of any size.
  void BroadcastChannels(int64_t first_channel, int64_t at, int64_t count, float r, float* scale, float* shift) const {
    for (int64_t i = 0; i < count;) {
      const int64_t channel = first_channel + (at + i) / spatial;
      const int64_t run = std::min(count - i, spatial - (at + i) % spatial);
      std::fill_n(scale + i, run, weight ? r * ToFloat(weight[channel]) : r);
      std::fill_n(shift + i, run, bias ? ToFloat(bias[channel]) : 0.0f);
      i += run;
    }
  }

  void Store(void* to, int64_t row, float value) const {
    if (to == nullptr) return;
    DispatchFloats("group norm", statistics,
                   [&](auto tag) { static_cast<decltype(tag)*>(to)[row] = FromFloat<decltype(tag)>(value); });
  }
};

}  // namespace internal

// Outputs 0, 1, 2: activation(group norm), mean and rstd per (sample, group). activation: float -> float, branch-free.
template <class F>
void LaunchGroupNorm(OpContext& ctx, const GroupNormCall& c, F activation) {
  const Shape& shape = c.input.shape;
  const int64_t channels = shape[1] / c.groups, spatial = shape.Elements(2, shape.rank());
  const TensorView y = ctx.Output(0, c.input.dtype, shape);
  const TensorView mean = ctx.Output(1, c.statistics, Shape{shape[0], c.groups});
  const TensorView rstd = ctx.Output(2, c.statistics, Shape{shape[0], c.groups});
  const int64_t rows = Shape{shape[0], c.groups}.Elements();
  if (rows == 0) return;
  const DType weight_dtype = c.weight ? c.weight.dtype : c.bias ? c.bias.dtype : c.input.dtype;
  DispatchFloats(c.op, c.input.dtype, [&](auto x_tag) {
    using X = decltype(x_tag);
    const auto enqueue = [&](auto weight_tag) {
      using Weight = decltype(weight_tag);
      const internal::GroupNormTask<X, Weight, F> task{c.input.as<const X>(),
                                                       c.weight.as<const Weight>(),
                                                       c.bias.as<const Weight>(),
                                                       y.as<X>(),
                                                       mean.data,
                                                       rstd.data,
                                                       c.statistics,
                                                       c.groups,
                                                       channels,
                                                       spatial,
                                                       c.epsilon,
                                                       activation};
      ctx.Launch(c.op, [task, rows] {
        ParallelFor(rows, RowGrain(task.channels * task.spatial),
                    [&](int64_t begin, int64_t end) { task.Rows(begin, end); });
      });
    };
    if (weight_dtype == DType::kFloat32) {
      enqueue(float{});
    } else {
      enqueue(X{});
    }
  });
}

}  // namespace npu
