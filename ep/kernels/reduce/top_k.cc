// TopK. NaN is greater than every number, and of equal elements the one with the lower index comes first.
#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "ep/kernels/early_floats.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

// Whether a precedes b in ascending order.
template <class C>
bool Below(C a, C b) {
  if constexpr (std::is_floating_point_v<C>) {
    if (a != a) return false;
    if (b != b) return true;
  }
  return a < b;
}

// The first k positions of a slice, in order. `order` and `slice` are scratch of n.
template <class C>
void SelectTop(const std::vector<C>& slice, std::vector<int64_t>& order, int64_t k, bool largest) {
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto before = [&](int64_t i, int64_t j) {
    const C a = slice[i], b = slice[j];
    if (largest ? Below(b, a) : Below(a, b)) return true;
    if (largest ? Below(a, b) : Below(b, a)) return false;
    return i < j;
  };
  const auto n = static_cast<int64_t>(slice.size());
  // A heap of k rejects most elements immediately; if k is a large part of n, partitioning first is cheaper.
  if (k * 16 <= n) {
    std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
    return;
  }
  if (k < n) std::nth_element(order.begin(), order.begin() + k, order.end(), before);
  std::sort(order.begin(), order.begin() + k, before);
}

template <class T>
void TopKSlices(const AxisView& view, int64_t k, bool largest, const T* x, T* values, int64_t* indices, int64_t begin,
                int64_t end) {
  using C = ComputeType<T>;
  std::vector<C> slice(view.n);
  std::vector<int64_t> order(view.n);
  for (int64_t s = begin; s < end; ++s) {
    const int64_t outer = s / view.inner, inner = s % view.inner;
    const T* from = x + outer * view.n * view.inner + inner;
    for (int64_t i = 0; i < view.n; ++i) {
      if constexpr (kIsHalf<T>) {
        slice[i] = ToFloat(from[i * view.inner]);
      } else {
        slice[i] = from[i * view.inner];
      }
    }
    SelectTop(slice, order, k, largest);
    const int64_t to = outer * k * view.inner + inner;
    for (int64_t i = 0; i < k; ++i) {
      if (values != nullptr) values[to + i * view.inner] = from[order[i] * view.inner];
      if (indices != nullptr) indices[to + i * view.inner] = order[i];
    }
  }
}

class TopKKernel : public Kernel {
 public:
  explicit TopKKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")), largest_(info.attributes.Int("largest", 1) != 0) {
    if (info.attributes.Has("k")) k_ = info.attributes.Int("k");
  }
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis("TopK", axis_, x.shape.rank());
    const int64_t k = k_ ? *k_ : ReadHostInt("TopK", "K", ctx.Input(1));
    NPU_CHECK(k >= 0 && k <= x.shape[axis], "[TopK] expected K in [0, ", x.shape[axis], "] along axis ", axis, ", got ",
              k);
    Shape shape = x.shape;
    shape[axis] = k;
    const TensorView values = ctx.Output(0, x.dtype, shape);
    const TensorView indices = ctx.Output(1, DType::kInt64, shape);
    if (shape.Elements() == 0) return;
    const AxisView view = ViewAround(x.shape, axis);
    DispatchTypes("TopK", x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(
          "TopK", [=, largest = largest_, px = x.as<const T>(), pv = values.as<T>(), pi = indices.as<int64_t>()] {
            ParallelFor(view.outer * view.inner, RowGrain(view.n),
                        [=](int64_t begin, int64_t end) { TopKSlices(view, k, largest, px, pv, pi, begin, end); });
          });
    });
  }

 private:
  int64_t axis_;
  bool largest_;
  std::optional<int64_t> k_;  // before opset 10: an attribute
};

NPU_ONNX_KERNEL({
    .type = "TopK",
    .since = 1,
    .until = 1,
    .inputs = {Input("X", kEarlyFloats)},
    .outputs = {Output("Values", kEarlyFloats), Output("Indices", kInt64)},
    .attributes = {IntAttribute("axis", -1), RequiredInt("k")},
    .make = MakeKernel<TopKKernel>,
});

NPU_ONNX_KERNEL({
    .type = "TopK",
    .since = 10,
    .until = 24,
    .inputs = {Input("X", kNumeric), HostInput("K", kInt64)},
    .outputs = {Output("Values", kNumeric), Output("Indices", kInt64)},
    // The result is always sorted, which `sorted` = 0 also allows.
    .attributes = {IntAttribute("axis", -1), IntAttribute("largest", 1), IntAttribute("sorted", 1)},
    .make = MakeKernel<TopKKernel>,
});

}  // namespace
}  // namespace npu
