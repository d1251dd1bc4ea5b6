// The part of torch's unique whose result sizes are known in advance: the order of a matrix's sorted rows, and which of
// them differ from their predecessor. The distinct rows, whose number depends on the data, are gathered by the caller
// once it has read that number. NaN differs from itself.
#include "ep/kernels/indexing/sorted_rows.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

template <class T>
bool Differ(const T* a, const T* b, int64_t width) {
  for (int64_t k = 0; k < width; ++k)
    if (!(Upcast(a[k]) == Upcast(b[k]))) return true;
  return false;
}

class UniqueRunsKernel : public Kernel {
 public:
  explicit UniqueRunsKernel(const KernelInfo& info) : sorted_(info.attributes.Bool("sorted")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_CHECK(x && x.shape.rank() == 2, "[unique] expected a matrix, got shape ", x.shape);
    const int64_t n = x.shape[0], width = x.shape[1];
    const TensorView order = ctx.Output(0, DType::kInt64, {n}), starts = ctx.Output(1, DType::kBool, {n});
    NPU_CHECK(order && starts, "[unique] expected order and starts to be asked for together");
    if (n == 0) return;
    DispatchTypes("unique", x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      const Rows<T> rows{x.as<const T>(), 1, n, width};
      void* scratch = sorted_ ? ctx.Workspace(SortScratch(rows)) : nullptr;
      auto* at = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, n)));
      ctx.Launch("unique", [rows, sorted = sorted_, at, to = order.as<int64_t>(), scratch, begins = starts.as<bool>()] {
        const auto row = [&](int64_t i) { return rows.x + i * rows.inner; };
        if (sorted) {
          SortRows(rows, scratch, at);
        } else {
          std::iota(at, at + rows.count, int64_t{0});
        }
        for (int64_t i = 0; i < rows.count; ++i) begins[i] = i == 0 || Differ(row(at[i - 1]), row(at[i]), rows.inner);
        std::copy_n(at, rows.count, to);
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
