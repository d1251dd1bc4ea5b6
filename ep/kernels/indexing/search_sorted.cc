// torch's searchsorted: the insertion position of each value in its sorted row, left or right of equal elements. NaN
// sorts last.
#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

// The position of `value` among `length` elements, sorted by `order` from `begin` on unless it is null. The bisection
// steps are torch's: they determine the result for elements that are unsorted or NaN.
template <bool right, class T>
int64_t PlaceOf(ComputeType<T> value, const T* row, const CheckedNumbers<int64_t>* order, int64_t begin,
                int64_t length) {
  int64_t first = 0, last = length;
  while (first < last) {
    const int64_t middle = first + (last - first) / 2;
    const ComputeType<T> bound = Upcast(row[order == nullptr ? middle : (*order)[begin + middle]]);
    if (right ? !(bound > value) : !(bound >= value)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

class SearchSortedKernel : public Kernel {
 public:
  explicit SearchSortedKernel(const KernelInfo& info) : right_(info.attributes.Bool("right")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView sorted = ctx.Input(0), values = ctx.Input(1), order = ctx.Input(2);
    NPU_OP_CHECK(kOp, sorted && values && sorted.dtype == values.dtype, "expected sorted and values of one dtype");
    NPU_OP_CHECK(kOp, sorted.shape.rank() == 2 && values.shape.rank() == 2 && values.shape[0] == sorted.shape[0],
                 "expected sorted [R, L] and values [R, N], got ", sorted.shape, " and ", values.shape);
    NPU_OP_CHECK(kOp, !order || (order.dtype == DType::kInt64 && order.shape == sorted.shape),
                 "expected a sorter of int64 and shape ", sorted.shape, ", got ", NameOf(order.dtype), " of ",
                 order.shape);
    const TensorView y = ctx.Output(0, DType::kInt64, values.shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, sorted.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [length = sorted.shape[1], per_row = values.shape[1], n = y.elements(), right = right_,
                       rows = sorted.as<const T>(), from = values.as<const T>(), by = order.as<const int64_t>(),
                       bounds = sorted.elements(), to = y.as<int64_t>()] {
        const CheckedNumbers checked(kOp, "a sorter's index", by, 0, length);
        if (by != nullptr) checked.CheckFirst(bounds);
        ParallelFor(n, kMathGrain, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t row = i / per_row * length;
            const auto place = right ? PlaceOf<true, T> : PlaceOf<false, T>;
            to[i] = place(Upcast(from[i]), rows + row, by == nullptr ? nullptr : &checked, row, length);
          }
        });
      });
    });
  }

 private:
  static constexpr const char* kOp = "searchsorted";

  bool right_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "SearchSorted",
    .inputs = {Input("sorted", kNumeric), Input("values", kNumeric), OptionalInput("sorter", kInt64)},
    .outputs = {Output("places", kInt64)},
    .attributes = {IntAttribute("right", 0)},
    .make = MakeKernel<SearchSortedKernel>,
});

}  // namespace
}  // namespace npu
