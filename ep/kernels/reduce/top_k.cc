// TopK. NaN is greater than every number, and of equal elements the one with the lower index comes first.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "ep/kernels/early_floats.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/sorted_positions.h"
#include "ep/kernels/top_keys.h"

namespace npu {
namespace {

// The first k of the positions of a slice, whose smallest keys come first.
template <class Key>
class FirstOfMany {
 public:
  FirstOfMany(int64_t n, int64_t k) : n_(n), k_(k), keys_(static_cast<size_t>(n)), scratch_(static_cast<size_t>(n)) {}

  template <class KeyOf>
  void Select(const KeyOf& key_of) {
    for (int64_t i = 0; i < n_; ++i) keys_[i] = {key_of(i), i};
    Key* const keys = keys_.data();
    // A heap of k rejects most keys immediately; if k is a large part of n, partitioning first is cheaper.
    if (k_ * 16 <= n_) {
      std::partial_sort(keys, keys + k_, keys + n_);
    } else if (k_ * 2 <= n_) {
      std::nth_element(keys, keys + k_, keys + n_);
      std::sort(keys, keys + k_);
    } else {
      SortKeys(keys, n_, scratch_.data());
    }
  }
  int64_t operator[](int64_t i) const { return keys_[i].position(); }

 private:
  int64_t n_, k_;
  std::vector<Key> keys_, scratch_;
};

// The same of a few positions, by keys of 32 bits.
class FirstFew {
 public:
  static bool Serves(int64_t n, int64_t k) {
    return k <= 32 && k * 16 <= n && n <= std::numeric_limits<int32_t>::max();
  }
  FirstFew(int64_t n, int64_t k) : largest_(n, k), keys_(static_cast<size_t>(n)), positions_(static_cast<size_t>(k)) {}

  template <class KeyOf>
  void Select(const KeyOf& key_of) {
    for (size_t i = 0; i < keys_.size(); ++i)
      keys_[i] = static_cast<int32_t>(~key_of(static_cast<int64_t>(i)) ^ 0x80000000u);
    largest_.Select(keys_.data(), positions_.data());
  }
  int64_t operator[](int64_t i) const { return positions_[i]; }

 private:
  TopKeys largest_;
  std::vector<int32_t> keys_, positions_;
};

template <class First, class T>
void TopKSlices(const AxisView& view, int64_t k, bool largest, const T* x, T* values, int64_t* indices, int64_t begin,
                int64_t end) {
  First first(view.n, k);
  for (int64_t s = begin; s < end; ++s) {
    const int64_t outer = s / view.inner, inner = s % view.inner;
    const T* from = x + outer * view.n * view.inner + inner;
    first.Select([=, step = view.inner, flip = largest ? ~0 : 0](int64_t i) {
      const auto key = UnsignedKey(Upcast(from[i * step]));
      return static_cast<decltype(key)>(key ^ static_cast<decltype(key)>(int64_t{flip}));
    });
    const int64_t to = outer * k * view.inner + inner;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t position = first[i];
      if (values != nullptr) values[to + i * view.inner] = from[position * view.inner];
      if (indices != nullptr) indices[to + i * view.inner] = position;
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
      ctx.Launch("TopK",
                 [=, largest = largest_, px = x.as<const T>(), pv = values.as<T>(), pi = indices.as<int64_t>()] {
                   ParallelFor(view.outer * view.inner, RowGrain(view.n), [=](int64_t begin, int64_t end) {
                     if constexpr (sizeof(T) <= 4) {
                       if (FirstFew::Serves(view.n, k))
                         return TopKSlices<FirstFew>(view, k, largest, px, pv, pi, begin, end);
                     }
                     WithKeyType<ComputeType<T>>(view.n, [=](auto key) {
                       TopKSlices<FirstOfMany<decltype(key)>>(view, k, largest, px, pv, pi, begin, end);
                     });
                   });
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
