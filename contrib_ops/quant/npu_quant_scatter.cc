// npu_quant_scatter(self, indices, updates, quant_scales, quant_zero_points; axis, ..) -> y. The semantics are in
// npu_quant_scatter.py.
#include "contrib_ops/quant/npu_quant_scatter.h"

#include <string>

#include "ep/kernels/indexing/slice_updates.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/kernels/segments.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUQuantScatter::In;
using Out = nodes::NPUQuantScatter::Out;

constexpr const char* kOp = "npu_quant_scatter";

class QuantScatterKernel final : public Kernel {
 public:
  explicit QuantScatterKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("axis")), quant_axis_(info.attributes.Int("quant_axis")) {
    if (info.attributes.Has("dst_type"))
      QuantizedTypeOf(kOp, "dst_type", info.attributes.Int("dst_type"), {{TypeCode::kInt8, QuantizedType::kInt8}});
    const std::string reduce = info.attributes.String("reduce");
    NPU_OP_CHECK(kOp, reduce == "update", "expected reduce 'update', got '", reduce, "'");
    const std::string rounding = info.attributes.String("round_mode", "rint");
    NPU_OP_CHECK(kOp, rounding == "rint", "expected round_mode 'rint', got '", rounding, "'");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView self = ctx.Input(In::self), indices = ctx.Input(In::indices), updates = ctx.Input(In::updates);
    const TensorView scales = ctx.Input(In::quant_scales), zero_points = ctx.Input(In::quant_zero_points);
    NPU_OP_CHECK(kOp, self && indices && updates && scales,
                 "expected the tensors self, indices, updates and quant_scales");
    const int rank = self.shape.rank();
    NPU_OP_CHECK(kOp, rank >= 3, "expected self of rank >= 3, got ", self.shape);
    const SliceUpdates g = CheckSliceUpdates(kOp, axis_, self.shape, indices.shape, updates.shape);
    NPU_OP_CHECK(kOp, axis_ != -1 && axis_ != rank - 1, "expected axis before the last one, got ", axis_);
    NPU_OP_CHECK(kOp, quant_axis_ == -1 || quant_axis_ == rank - 1, "expected quant_axis -1 or ", rank - 1,
                 ", the last one, got ", quant_axis_);
    const int64_t columns = self.shape.back();
    NPU_OP_CHECK(kOp, scales.shape.rank() >= 1 && scales.shape.back() == columns && scales.elements() == columns,
                 "expected quant_scales of ", columns, " values on the last axis, got ", scales.shape);
    NPU_OP_CHECK(kOp, !zero_points || zero_points.shape == scales.shape,
                 "expected quant_zero_points of quant_scales' shape ", scales.shape, ", got ", zero_points.shape);

    const TensorView out = ctx.Output(Out::y, self.dtype, self.shape);
    // The resolved starts live apart from the indices: whatever is written, what was checked is what is used.
    auto* starts = static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(g.count) * sizeof(int64_t)));
    auto* floats = static_cast<float*>(ctx.Workspace(static_cast<size_t>(2 * columns) * sizeof(float)));
    ctx.Launch(kOp, [g, indices, updates, scales, zero_points, columns, starts, floats,
                     source = self.as<const int8_t>(), elements = self.elements(), destination = out.as<int8_t>()] {
      const bool distinct = ResolveStarts(kOp, indices, g, starts);
      if (destination != source) CopyBytes(source, destination, elements);
      if (updates.elements() == 0) return;
      ConvertToFloats(scales, floats);
      if (zero_points) {
        ConvertToFloats(zero_points, floats + columns);
      } else {
        std::fill_n(floats + columns, columns, 0.0f);
      }
      const int64_t runs = g.count * g.outer, rows = g.length * g.inner / columns;
      const RowParameter scale{floats, true}, offset{floats + columns, true};
      // Where updates may overlap, they are written in order: the last one wins.
      ForEachPiece(
          runs * rows, columns,
          [&](int64_t row, int64_t begin, int64_t count) {
            const int64_t run = row / rows;
            const int64_t to = starts[run / g.outer] + run % g.outer * g.size;
            FloatBlock values;
            ForEachBlock(count, [&](int64_t from, int64_t n) {
              const int64_t column = begin + from;
              QuantizeBlock(QuantizeBy::kDivision, QuantizedType::kInt8,
                            values.Load(updates, row * columns + column, n), scale.From(column), offset.From(column),
                            destination + to * g.inner + row % rows * columns + column, n);
            });
          },
          !distinct);
    });
  }

 private:
  int64_t axis_, quant_axis_;
};

NPU_KERNEL(NPUQuantScatter, QuantScatterKernel);

}  // namespace
}  // namespace npu
