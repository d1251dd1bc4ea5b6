// Copies rows as bytes; of equal indices, the last one wins.
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/indexing/indexed_rows.h"

namespace npu {
namespace {

class IndexCopyKernel : public Kernel {
 public:
  explicit IndexCopyKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const IndexedRows rows("index_copy", ctx, axis_);
    const TensorView source = rows.Source("index_copy", ctx.Input(2));
    rows.LaunchStart("index_copy", ctx);
    if (rows.empty()) return;
    AxisView bytes = rows.view;
    bytes.inner *= BitsOf(rows.y.dtype) / 8;
    DispatchIndices("index_copy", rows.index, [&](auto index) {
      ctx.Launch("index_copy", [bytes, count = rows.count, at = rows.index.as<const decltype(index)>(),
                                from = source.as<const char>(), to = rows.y.as<char>()] {
        ForEachIndexedRow<false>("index_copy", bytes, at, count,
                                 [&](int64_t row, int64_t k, int64_t begin, int64_t end) {
                                   std::memcpy(to + row * bytes.inner + begin, from + k * bytes.inner + begin,
                                               static_cast<size_t>(end - begin));
                                 });
      });
    });
  }

 private:
  int64_t axis_;
};

class IndexFillKernel : public Kernel {
 public:
  explicit IndexFillKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const IndexedRows rows("index_fill", ctx, axis_);
    const TensorView value = ctx.Input(2);
    NPU_CHECK(value && value.dtype == rows.y.dtype && value.elements() == 1, "[index_fill] expected one value of ",
              NameOf(rows.y.dtype), ", got ", NameOf(value.dtype), " of shape ", value.shape);
    rows.LaunchStart("index_fill", ctx);
    if (rows.empty()) return;
    DispatchSize(BitsOf(rows.y.dtype) / 8, [&](auto type) {
      using T = decltype(type);
      DispatchIndices("index_fill", rows.index, [&](auto index) {
        ctx.Launch("index_fill", [rows, at = rows.index.as<const decltype(index)>(), from = value.as<const T>(),
                                  to = rows.y.as<T>()] {
          ForEachIndexedRow<true>("index_fill", rows.view, at, rows.count,
                                  [&, element = *from](int64_t row, int64_t, int64_t begin, int64_t end) {
                                    T* y = to + row * rows.view.inner;
                                    std::fill(y + begin, y + end, element);
                                  });
        });
      });
    });
  }

 private:
  int64_t axis_;
};

NPU_ONNX_KERNEL(IndexedRowsDef("IndexCopy", kFixedWidth, {Input("source", kFixedWidth)}, MakeKernel<IndexCopyKernel>));
NPU_ONNX_KERNEL(IndexedRowsDef("IndexFill", kFixedWidth, {Input("value", kFixedWidth)}, MakeKernel<IndexFillKernel>));

}  // namespace
}  // namespace npu
