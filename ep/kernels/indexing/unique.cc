// Unique (ai.onnx 11): the distinct elements of a tensor, or its distinct slices along an axis. All NaN are one
// element, as in NumPy.
#include <algorithm>
#include <numeric>
#include <optional>

#include "ep/kernels/indexing/chosen_rows.h"
#include "ep/kernels/indexing/sorted_rows.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

constexpr const char* kOp = "Unique";

// Arrays with an entry for each row; `first` and `often` are filled as far as there are distinct rows.
struct Found {
  int64_t* group;  // the number of the row's value
  int64_t* first;  // of each value, the first row that has it
  int64_t* often;  // of each value, how many rows have it
  int64_t* count;  // of distinct rows
};

// Numbers the distinct rows in their order. `order` is scratch for a number per row.
template <class T>
void FindDistinct(const Rows<T>& rows, void* scratch, int64_t* order, const Found& found) {
  SortRows(rows, scratch, order);
  int64_t group = -1;
  for (int64_t i = 0; i < rows.count; ++i) {
    if (i == 0 || rows.Compare(order[i - 1], order[i]) != 0) {
      found.first[++group] = order[i];  // equal rows are in the order of their numbers
      found.often[group] = 0;
    }
    ++found.often[group];
    found.group[order[i]] = group;
  }
  *found.count = group + 1;
}

// Renumbers the distinct rows in the order in which they first appear. `order` and `number` are scratch.
void NumberByAppearance(int64_t rows, int64_t* order, int64_t* number, const Found& found) {
  const int64_t n = *found.count;
  std::iota(order, order + n, int64_t{0});
  std::sort(order, order + n, [&](int64_t a, int64_t b) { return found.first[a] < found.first[b]; });
  for (int64_t i = 0; i < n; ++i) number[order[i]] = i;
  for (int64_t i = 0; i < rows; ++i) found.group[i] = number[found.group[i]];
  for (int64_t* values : {found.first, found.often}) {
    for (int64_t i = 0; i < n; ++i) number[i] = values[order[i]];
    std::copy(number, number + n, values);
  }
}

class UniqueKernel final : public Kernel {
 public:
  explicit UniqueKernel(const KernelInfo& info) : sorted_(info.attributes.Bool("sorted")) {
    if (info.attributes.Has("axis")) axis_ = info.attributes.Int("axis");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const AxisView view = RowsAlong(kOp, x.shape, axis_);
    const int64_t count = view.n;
    const Found found = Find(ctx, x, view);
    const int64_t distinct = count == 0 ? 0 : ReadBack(ctx, found.count);
    const Shape shape = ShapeOfRows(kOp, x.shape, axis_, distinct);
    const TensorView y = ctx.Output(0, x.dtype, shape), first = ctx.Output(1, DType::kInt64, {distinct}),
                     group = ctx.Output(2, DType::kInt64, {count}), often = ctx.Output(3, DType::kInt64, {distinct});
    if (count == 0) return;
    const int64_t bytes = view.inner * (BitsOf(x.dtype) / 8);
    ctx.Launch(kOp, [=, from = x.as<const char>(), to = y.as<char>()] {
      const auto copy = [](const int64_t* source, const TensorView& target, int64_t n) {
        if (target) std::copy(source, source + n, target.as<int64_t>());
      };
      copy(found.first, first, distinct);
      copy(found.group, group, count);
      copy(found.often, often, distinct);
      if (to != nullptr && bytes > 0) CopyRows(view, from, found.first, distinct, bytes, to);
    });
  }

 private:
  Found Find(OpContext& ctx, const TensorView& x, const AxisView& view) const {
    const int64_t count = view.n;
    const auto numbers = [&](int64_t n) { return static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, n))); };
    if (count == 0) return {};
    const Found found{numbers(count), numbers(count), numbers(count), numbers(1)};
    int64_t* order = numbers(count);
    int64_t* number = sorted_ ? nullptr : numbers(count);
    DispatchTypes(kOp, x.dtype, FixedWidthTypes{}, [&](auto type) {
      using T = decltype(type);
      const Rows<T> rows{x.as<const T>(), view.outer, count, view.inner};
      ctx.Launch(kOp, [rows, scratch = ctx.Workspace(SortScratch(rows)), order, number, found] {
        FindDistinct(rows, scratch, order, found);
        if (number != nullptr) NumberByAppearance(rows.count, order, number, found);
      });
    });
    return found;
  }

  bool sorted_;
  std::optional<int64_t> axis_;
};

NPU_ONNX_KERNEL({
    .type = "Unique",
    .since = 11,
    .until = 11,
    .inputs = {Input("X", kWithoutBFloat16)},
    .outputs = {Output("Y", kWithoutBFloat16), OptionalOutput("indices", kInt64),
                OptionalOutput("inverse_indices", kInt64), OptionalOutput("counts", kInt64)},
    .attributes = {IntAttribute("sorted", 1), IntAttribute("axis")},
    .make = MakeKernel<UniqueKernel>,
});

}  // namespace
}  // namespace npu
