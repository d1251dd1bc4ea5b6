// MaxPool and GlobalMaxPool, and torch's max pools, whose indices count within a plane. NaN counts as the maximum.
#include <cmath>
#include <limits>
#include <utility>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/pooling/definition.h"
#include "ep/kernels/pooling/rows.h"
#include "ep/kernels/pooling/windows.h"

namespace npu {
namespace {

using pooling::Axis;
using pooling::Plan;
using pooling::Window;

using OnnxTypes = Types<float, Float16, BFloat16, double, int8_t, uint8_t>;

template <class C>
constexpr C Lowest() {
  if constexpr (std::is_floating_point_v<C>) return -std::numeric_limits<C>::infinity();
  return std::numeric_limits<C>::lowest();
}

template <class C>
bool Replaces(C value, C best) {
  if constexpr (std::is_floating_point_v<C>) return value > best || value != value;
  return value > best;
}

template <class C>
C MaxOf(const C* x, const Window& window, int64_t step) {
  constexpr int64_t kLanes = 32;
  C best = Lowest<C>();
  int64_t at = window.begin;
  if (step == 1 && window.count >= 2 * kLanes) {  // lanes let a long window vectorise
    C lanes[kLanes];
    std::fill(lanes, lanes + kLanes, best);
    for (; at + kLanes <= window.end; at += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) lanes[i] = Replaces(x[at + i], lanes[i]) ? x[at + i] : lanes[i];
    }
    for (const C lane : lanes) best = Replaces(lane, best) ? lane : best;
  }
  for (; at < window.end; at += step) best = Replaces(x[at], best) ? x[at] : best;
  return best;
}

// Updates each column's maximum with the row x.
template <class C>
void UpdateMax(const Plan& plan, const C* x, C* __restrict best) {
  if (plan.by_tap()) {
    plan.ForEachTap([&](int64_t first, int64_t count, int64_t position, auto stride) {
      const C* from = x + position;
      C* to = best + first;
      for (int64_t i = 0; i < count; ++i) to[i] = Replaces(from[i * stride], to[i]) ? from[i * stride] : to[i];
    });
    return;
  }
  for (int64_t o = 0; o < plan.columns(); ++o) {
    const C value = MaxOf(x, plan.windows()[o], plan.step());
    best[o] = Replaces(value, best[o]) ? value : best[o];
  }
}

// The same with the positions of the maxima; `index` is that of the row's first position.
template <class C>
void UpdateMax(const Plan& plan, const C* x, int64_t index, C* __restrict best, int64_t* __restrict places) {
  const int64_t each = plan.column_index();
  if (plan.by_tap()) {
    plan.ForEachTap([&](int64_t first, int64_t count, int64_t position, auto stride) {
      const C* from = x + position;
      C* to = best + first;
      int64_t* at = places + first;
      const int64_t start = index + position * each, step = stride * each;
      for (int64_t i = 0; i < count; ++i) {
        const C value = from[i * stride];
        const bool replaces = Replaces(value, to[i]);
        to[i] = replaces ? value : to[i];
        at[i] = replaces ? start + i * step : at[i];
      }
    });
    return;
  }
  for (int64_t o = 0; o < plan.columns(); ++o) {
    const Window& window = plan.windows()[o];
    for (int64_t at = window.begin; at < window.end; at += plan.step()) {
      if (!Replaces(x[at], best[o])) continue;
      best[o] = x[at];
      places[o] = index + at * each;
    }
  }
}

template <class T>
struct MaxTask {
  Plan plan;
  const T* x;
  T* y;
  int64_t* places;      // null: not requested
  int64_t plane_index;  // the difference between the indices of two planes

  void Rows(int64_t begin, int64_t end) const {
    pooling::RowReader<T> reader(plan.width());
    pooling::RowWriter<T> writer(plan.columns());
    for (int64_t row = begin; row < end; ++row) {
      const int64_t plane = row / plan.rows_out(), of_plane = row % plan.rows_out();
      const T* image = x + plane * plan.inputs();
      auto* best = writer.Values(y + row * plan.columns());
      std::fill(best, best + plan.columns(), Lowest<ComputeType<T>>());
      int64_t* at = places == nullptr ? nullptr : places + row * plan.columns();
      if (at != nullptr) FirstPlaces(plane, of_plane, at);
      plan.ForEachInputRow(of_plane, [&](int64_t input_row, int64_t index) {
        const auto* values = reader(image + input_row * plan.width(), plan.width());
        if (at == nullptr) {
          UpdateMax(plan, values, best);
        } else {
          UpdateMax(plan, values, plane * plane_index + index, best, at);
        }
      });
      writer.Commit(y + row * plan.columns(), plan.columns());
    }
  }

 private:
  // Where the windows begin: the result for windows in which nothing exceeds the lowest value.
  void FirstPlaces(int64_t plane, int64_t of_plane, int64_t* at) const {
    const std::vector<Window>& windows = plan.windows();
    const int64_t first = plane * plane_index + plan.FirstIndex(of_plane);
    for (int64_t o = 0; o < plan.columns(); ++o)
      at[o] = first + (windows[o].begin - windows[0].begin) * plan.column_index();
  }
};

struct IndexOrder {
  bool of_tensor;  // indices count through all planes, else within one
  bool column_major;
};

template <class AllTypes>
void MaxPool(OpContext& ctx, const char* op, std::vector<Axis> axes, IndexOrder order, AllTypes) {
  const TensorView x = ctx.Input(0);
  const Shape shape = pooling::OutputShape(x.shape, axes);
  const TensorView y = ctx.Output(0, x.dtype, shape);
  const TensorView places = ctx.Output(1, DType::kInt64, shape);
  if (y.elements() == 0) return;
  Plan plan(x.shape, std::move(axes), order.column_major);
  DispatchTypes(op, x.dtype, AllTypes{}, [&](auto type) {
    using T = decltype(type);
    const int64_t apart = order.of_tensor ? plan.inputs() : 0;
    pooling::LaunchRows(ctx, op, MaxTask<T>{std::move(plan), x.as<const T>(), y.as<T>(), places.as<int64_t>(), apart});
  });
}

class MaxPoolKernel final : public Kernel {
 public:
  explicit MaxPoolKernel(const KernelInfo& info) : sliding_("MaxPool", info.attributes) {
    const int64_t order = info.attributes.Int("storage_order");
    NPU_CHECK(order == 0 || order == 1, "[MaxPool] expected storage_order 0 or 1, got ", order);
    column_major_ = order == 1;
  }
  void Compute(OpContext& ctx) const override {
    MaxPool(ctx, "MaxPool", sliding_.AxesOf(ctx.Input(0).shape), {true, column_major_}, OnnxTypes{});
  }

 private:
  pooling::Sliding sliding_;
  bool column_major_;
};

class GlobalMaxPoolKernel final : public Kernel {
 public:
  explicit GlobalMaxPoolKernel(const KernelInfo& /*info*/) {}
  void Compute(OpContext& ctx) const override {
    const Shape& shape = ctx.Input(0).shape;
    MaxPool(ctx, "GlobalMaxPool", pooling::GlobalAxes("GlobalMaxPool", shape), {true, false}, FloatTypes{});
  }
};

class PlaneMaxPoolKernel final : public Kernel {
 public:
  explicit PlaneMaxPoolKernel(const KernelInfo& info) : sliding_("MaxPool", info.attributes) {}
  void Compute(OpContext& ctx) const override {
    MaxPool(ctx, "MaxPool", sliding_.AxesOf(ctx.Input(0).shape), {false, false}, NumericTypes{});
  }

 private:
  pooling::Sliding sliding_;
};

class AdaptiveMaxPoolKernel final : public Kernel {
 public:
  explicit AdaptiveMaxPoolKernel(const KernelInfo& /*info*/) {}
  void Compute(OpContext& ctx) const override {
    const std::vector<int64_t> sizes = ReadHostInts("AdaptiveMaxPool", "output_size", ctx.Input(1));
    MaxPool(ctx, "AdaptiveMaxPool", pooling::AdaptiveAxes("AdaptiveMaxPool", ctx.Input(0).shape, sizes), {false, false},
            NumericTypes{});
  }
};

NPU_ONNX_KERNEL({
    .type = "MaxPool",
    .since = 1,
    .until = 1,
    .inputs = {Input("X", SetOf(OnnxTypes{}))},
    .outputs = {Output("Y", SetOf(OnnxTypes{}))},
    .attributes = pooling::SlidingAttributes({IntsAttribute("dilations"), IntAttribute("storage_order", 0)}),
    .make = MakeKernel<MaxPoolKernel>,
});
NPU_ONNX_KERNEL({
    .type = "MaxPool",
    .since = 8,
    .until = 22,
    .inputs = {Input("X", SetOf(OnnxTypes{}))},
    .outputs = {Output("Y", SetOf(OnnxTypes{})), OptionalOutput("Indices", kInt64)},
    .attributes = pooling::SlidingAttributes({IntsAttribute("dilations"), IntAttribute("storage_order", 0)}),
    .make = MakeKernel<MaxPoolKernel>,
});
NPU_ONNX_KERNEL({
    .type = "GlobalMaxPool",
    .since = 1,
    .until = 22,
    .inputs = {Input("X", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .make = MakeKernel<GlobalMaxPoolKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "MaxPool",
    .inputs = {Input("X", kNumeric)},
    .outputs = {Output("Y", kNumeric), Output("Indices", kInt64)},
    .attributes = pooling::SlidingAttributes({IntsAttribute("dilations")}),
    .make = MakeKernel<PlaneMaxPoolKernel>,
});
NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "AdaptiveMaxPool",
    .inputs = {Input("X", kNumeric), HostInput("output_size", kInt64)},
    .outputs = {Output("Y", kNumeric), Output("Indices", kInt64)},
    .make = MakeKernel<AdaptiveMaxPoolKernel>,
});

}  // namespace
}  // namespace npu
