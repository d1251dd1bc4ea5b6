// ONNX's GroupNormalization, torch's, which also returns the statistics, and InstanceNormalization, whose groups are
// single channels. Statistics are computed in double and the
// rest in float (double for float64), rounded once.
#include <algorithm>
#include <cmath>
#include <optional>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

template <class T>
struct GroupTask {
  using C = ComputeType<T>;

  const T* x;
  const void *scale, *bias;  // null: 1 and 0; one per channel, or per group
  bool wide;                 // whether these are of type C instead of T
  T* y;
  C *mean, *rstd;                             // null: not requested
  int64_t rows, groups, channels, positions;  // channels: per group
  bool per_group;
  double epsilon;

  void Row(int64_t row) const {
    const int64_t n = channels * positions;
    const T* from = x + row * n;
    const double centre = Sum<false>(from, n, 0.0) / static_cast<double>(n);
    const double variance = Sum<true>(from, n, centre) / static_cast<double>(n);
    const C mu = static_cast<C>(centre), r = static_cast<C>(1.0 / std::sqrt(variance + epsilon));
    if (mean != nullptr) mean[row] = mu;
    if (rstd != nullptr) rstd[row] = r;
    const int64_t group = row % groups;
    for (int64_t k = 0; k < channels; ++k) {
      const int64_t at = per_group ? group : group * channels + k;
      const C factor = scale == nullptr ? r : r * At(scale, at);
      const C addend = bias == nullptr ? C{0} : At(bias, at);
      Normalize(from + k * positions, y + row * n + k * positions, mu, factor, addend);
    }
  }

 private:
  C At(const void* weights, int64_t i) const {
    return wide ? static_cast<const C*>(weights)[i] : static_cast<C>(static_cast<const T*>(weights)[i]);
  }

  // The sum of x - shift, or of its squares.
  template <bool squares>
  static double Sum(const T* x, int64_t n, double shift) {
    double total = 0;
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      C buffer[kRowBlock];
      const C* v = Load(x + begin, buffer, count);
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < count; ++i) {
        const double way = static_cast<double>(v[i]) - shift;
        sum += squares ? way * way : way;
      }
      total += sum;
    });
    return total;
  }

  void Normalize(const T* from, T* to, C mu, C factor, C addend) const {
    ForEachBlock(positions, [&](int64_t begin, int64_t count) {
      C buffer[kRowBlock];
      const C* v = Load(from + begin, buffer, count);
      C* r = buffer;
      if constexpr (!kIsHalf<T>) r = to + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) r[i] = (v[i] - mu) * factor + addend;
      if constexpr (kIsHalf<T>) FromFloat(r, to + begin, count);
    });
  }

  static const C* Load(const T* x, C* buffer, int64_t n) {
    if constexpr (kIsHalf<T>) {
      ToFloat(x, buffer, n);
      return buffer;
    } else {
      return x;
    }
  }
};

class GroupNormalizationKernel : public Kernel {
 public:
  explicit GroupNormalizationKernel(const KernelInfo& info)
      : op_(info.attributes.Has("num_groups") ? "GroupNormalization" : "InstanceNormalization"),
        epsilon_(info.attributes.Float("epsilon")),
        per_group_(info.since_version == 18) {
    if (info.attributes.Has("num_groups")) groups_ = info.attributes.Int("num_groups");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), scale = ctx.Input(1), bias = ctx.Input(2);
    const Shape& shape = x.shape;
    NPU_OP_CHECK(op_, shape.rank() >= 2, "expected X [N, C, …], got ", shape);
    const int64_t groups = groups_.value_or(std::max<int64_t>(shape[1], 1));
    NPU_OP_CHECK(op_, groups > 0 && groups <= std::max<int64_t>(shape[1], 1) && shape[1] % groups == 0,
                 "expected num_groups to be a positive divisor of the ", shape[1], " channels, got ", groups);
    const DType statistics = x.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    CheckChannels("scale", scale, shape, x.dtype, statistics);
    CheckChannels("bias", bias, shape, scale ? scale.dtype : x.dtype, scale ? scale.dtype : statistics);
    const Shape per_row{shape[0], groups};
    const TensorView y = ctx.Output(0, x.dtype, shape);
    const TensorView mean = ctx.Output(1, statistics, per_row), rstd = ctx.Output(2, statistics, per_row);
    if (per_row.Elements() == 0) return;
    DispatchTypes(op_, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      using C = ComputeType<T>;
      const GroupTask<T> task{x.as<const T>(),
                              scale.data,
                              bias.data,
                              (scale  ? scale.dtype
                               : bias ? bias.dtype
                                      : x.dtype) == statistics,
                              y.as<T>(),
                              mean.as<C>(),
                              rstd.as<C>(),
                              per_row.Elements(),
                              groups,
                              shape[1] / groups,
                              shape.Elements(2, shape.rank()),
                              per_group_,
                              epsilon_};
      ctx.Launch(op_, [task] {
        ParallelFor(task.rows, 16384 / (task.channels * task.positions + 1) + 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) task.Row(row);
        });
      });
    });
  }

 private:
  // Version 18 has one value per group, later versions one per channel. torch's may have a wider dtype than X.
  void CheckChannels(const char* name, const TensorView& t, const Shape& x, DType narrow, DType wide) const {
    const Shape wanted{per_group_ ? *groups_ : x[1]};
    NPU_OP_CHECK(op_, !t || (t.shape == wanted && (t.dtype == narrow || t.dtype == wide)), "expected ", name, " ",
                 NameOf(narrow), " of shape ", wanted, ", got ", NameOf(t.dtype), " of shape ", t.shape);
  }

  const char* op_;
  std::optional<int64_t> groups_;
  double epsilon_;
  bool per_group_;
};

std::string WhyUnsupportedStash(const NodeView& node) {
  return node.attributes.Int("stash_type") == 1 ? "" : "GroupNormalization with a stash_type other than float";
}

NPU_ONNX_KERNEL({
    .type = "GroupNormalization",
    .since = 18,
    .until = 18,
    .inputs = {Input("X", kAllFloats), Input("scale", kAllFloats), Input("bias", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {RequiredInt("num_groups"), FloatAttribute("epsilon", 1e-5)},
    .make = MakeKernel<GroupNormalizationKernel>,
});
NPU_ONNX_KERNEL({
    .type = "GroupNormalization",
    .since = 21,
    .until = 21,
    .inputs = {Input("X", kAllFloats), Input("scale", kAllFloats), Input("bias", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {RequiredInt("num_groups"), FloatAttribute("epsilon", 1e-5), IntAttribute("stash_type", 1)},
    .make = MakeKernel<GroupNormalizationKernel>,
    .unsupported = WhyUnsupportedStash,
});
NPU_ONNX_KERNEL({
    .type = "InstanceNormalization",
    .since = 6,
    .until = 22,
    .inputs = {Input("input", kAllFloats), Input("scale", kAllFloats), Input("B", kAllFloats)},
    .outputs = {Output("output", kAllFloats)},
    .attributes = {FloatAttribute("epsilon", 1e-5)},
    .make = MakeKernel<GroupNormalizationKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "GroupNormalization",
    .inputs = {Input("X", kAllFloats), OptionalInput("scale", kAllFloats), OptionalInput("bias", kAllFloats)},
    .outputs = {Output("Y", kAllFloats), Output("Mean", kAllFloats), Output("InvStdDev", kAllFloats)},
    .attributes = {RequiredInt("num_groups"), FloatAttribute("epsilon", 1e-5)},
    .make = MakeKernel<GroupNormalizationKernel>,
});

}  // namespace
}  // namespace npu
