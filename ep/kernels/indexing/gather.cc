#include <algorithm>
#include <cstring>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/indexing/index.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/runtime/shared_matrix.h"

namespace npu {
namespace {

class GatherKernel : public Kernel, public SharedMatrixReader {
 public:
  explicit GatherKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  // An embedding table may also be the output projection's weight.
  Panels PanelsOf(size_t input, const TensorView& table) const override {
    const bool rows = input == 0 && table.shape.rank() == 2 && (axis_ == 0 || axis_ == -2);
    return rows && gemm::PacksInPlace(table.dtype, table.shape[1], table.shape[0]) ? Panels::kEither : Panels::kNo;
  }
  void UsePanels(size_t, const TensorView& table, bool reorder, Stream& stream) override {
    if (reorder) gemm::PackInPlace("Gather", table, stream);
    panels_ = true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView indices = ctx.Input(1);
    const int axis = NormalizeAxis("Gather", axis_, x.shape.rank());
    Shape shape(x.shape.begin(), axis);
    for (int64_t d : indices.shape) shape.push_back(d);
    for (int d = axis + 1; d < x.shape.rank(); ++d) shape.push_back(x.shape[d]);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    const int64_t count = indices.elements();
    const int64_t outer = x.shape.Elements(0, axis);
    const int64_t n = x.shape[axis];
    const int64_t block = x.shape.Elements(axis + 1, x.shape.rank()) * (BitsOf(x.dtype) / 8);
    if (y.elements() == 0) return;
    if (panels_) return LaunchFromPanels(ctx, x, indices, y);
    DispatchIndices("Gather", indices, [&](auto type) {
      using Index = decltype(type);
      ctx.Launch("Gather", [=, from = x.as<const char>(), at = indices.as<const Index>(), to = y.as<char>()] {
        ParallelFor(outer * count, std::max<int64_t>(1, kCopyGrain / block), [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t index = CheckedIndex("Gather", at, i % count, n);
            std::memcpy(to + i * block, from + (i / count * n + index) * block, static_cast<size_t>(block));
          }
        });
      });
    });
  }

 private:
  static void LaunchFromPanels(OpContext& ctx, const TensorView& table, const TensorView& indices,
                               const TensorView& y) {
    const gemm::PackedMatrix columns{table.data, table.dtype, table.dtype, table.shape[1], table.shape[0]};
    const int64_t block = columns.rows * (BitsOf(table.dtype) / 8);
    DispatchIndices("Gather", indices, [&](auto type) {
      using Index = decltype(type);
      ctx.Launch("Gather", [=, at = indices.as<const Index>(), to = y.as<char>()] {
        ParallelFor(indices.elements(), 1, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            gemm::CopyColumn(columns, CheckedIndex("Gather", at, i, columns.columns), to + i * block);
        });
      });
    });
  }

  int64_t axis_;
  bool panels_ = false;
};

NPU_ONNX_KERNEL({
    .type = "Gather",
    .since = 1,
    .until = 13,
    .inputs = {Input("data", kFixedWidth), Input("indices", kIndices)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("axis", 0)},
    .shape_arithmetic = ShapeArithmetic::kProduct,
    .make = MakeKernel<GatherKernel>,
});

}  // namespace
}  // namespace npu
