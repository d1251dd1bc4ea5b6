// The part of torch's unique whose result sizes are known in advance: the order of a matrix's sorted rows, and which of
// them differ from their predecessor. A kernel allocates its outputs before it reads its operands, so the distinct
// rows, whose number depends on the data, are gathered by the caller once it has read that number.
#include <algorithm>
#include <numeric>

#include "ep/kernels/elementwise/widen.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

// Whether row a sorts before row b. NaN sorts last.
template <class T>
bool Precedes(const T* a, const T* b, int64_t width) {
  for (int64_t k = 0; k < width; ++k) {
    const ComputeType<T> x = Widened(a[k]), y = Widened(b[k]);
    if (x < y || (x == x && y != y)) return true;
    if (y < x || (y == y && x != x)) return false;
  }
  return false;
}

// NaN compares unequal to itself.
template <class T>
bool Differ(const T* a, const T* b, int64_t width) {
  for (int64_t k = 0; k < width; ++k)
    if (!(Widened(a[k]) == Widened(b[k]))) return true;
  return false;
}

// An element with its position: single-element rows are sorted without reading the matrix again.
template <class T>
struct PlacedNumber {
  ComputeType<T> value;
  int64_t place;

  bool operator<(const PlacedNumber& other) const {
    if (value < other.value) return true;
    if (other.value < value) return false;
    const bool nan = value != value, other_nan = other.value != other.value;
    return nan != other_nan ? other_nan : place < other.place;
  }
};

// `scratch` has space for n PlacedNumber<T> if the width is 1. Equal rows keep their order.
template <class T>
void SortRows(const T* rows, int64_t n, int64_t width, void* scratch, int64_t* order) {
  if (width == 1) {
    auto* numbers = static_cast<PlacedNumber<T>*>(scratch);
    for (int64_t i = 0; i < n; ++i) numbers[i] = {Widened(rows[i]), i};
    std::sort(numbers, numbers + n);
    for (int64_t i = 0; i < n; ++i) order[i] = numbers[i].place;
  } else {
    std::stable_sort(order, order + n,
                     [=](int64_t a, int64_t b) { return Precedes(rows + a * width, rows + b * width, width); });
  }
}

class UniqueRunsKernel : public Kernel {
 public:
  explicit UniqueRunsKernel(const KernelInfo& info) : sorted_(info.attributes.Bool("sorted")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView rows = ctx.Input(0);
    NPU_CHECK(rows && rows.shape.rank() == 2, "[unique] expected a matrix, got shape ", rows.shape);
    const int64_t n = rows.shape[0], width = rows.shape[1];
    const TensorView order = ctx.Output(0, DType::kInt64, {n}), starts = ctx.Output(1, DType::kBool, {n});
    NPU_CHECK(order && starts, "[unique] expected order and starts to be asked for together");
    if (n == 0) return;
    DispatchTypes("unique", rows.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      void* scratch = nullptr;
      if (sorted_ && width == 1) {
        const int64_t bytes = Shape{n, static_cast<int64_t>(sizeof(PlacedNumber<T>))}.Elements();
        scratch = ctx.Workspace(static_cast<size_t>(bytes));
      }
      ctx.Launch("unique", [n, width, sorted = sorted_, from = rows.as<const T>(), at = order.as<int64_t>(), scratch,
                            begins = starts.as<bool>()] {
        const auto row = [=](int64_t i) { return from + i * width; };
        std::iota(at, at + n, int64_t{0});
        if (sorted) SortRows(from, n, width, scratch, at);
        for (int64_t i = 0; i < n; ++i) begins[i] = i == 0 || Differ(row(at[i - 1]), row(at[i]), width);
      });
    });
  }

 private:
  bool sorted_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "UniqueRuns",
    .inputs = {Input("rows", kNumeric)},
    .outputs = {Output("order", kInt64), Output("starts", kBool)},
    .attributes = {IntAttribute("sorted", 1)},
    .make = MakeKernel<UniqueRunsKernel>,
});

}  // namespace
}  // namespace npu
