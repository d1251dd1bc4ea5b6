#include <algorithm>
#include <cstring>

#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

// Keeps the upper or lower triangle of the last two dimensions, from diagonal k.
class TriluKernel : public Kernel {
 public:
  explicit TriluKernel(const KernelInfo& info) : upper_(info.attributes.Bool("upper")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int rank = x.shape.rank();
    NPU_CHECK(rank >= 2, "[Trilu] expected matrices, got shape ", x.shape);
    const int64_t k = ctx.Input(1) ? ReadHostInt("Trilu", "k", ctx.Input(1)) : 0;
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    const int64_t rows = x.shape[rank - 2];
    const int64_t columns = x.shape[rank - 1];
    const int64_t lines = x.shape.Elements(0, rank - 1);
    if (y.elements() == 0) return;
    const int64_t size = BitsOf(x.dtype) / 8;
    // Outside these bounds every diagonal is outside the matrix; i + k cannot overflow.
    const int64_t diagonal = std::clamp(k, -rows - 1, columns + 1);
    ctx.Launch("Trilu", [=, upper = upper_, from = x.as<const char>(), to = y.as<char>()] {
      const int64_t pitch = columns * size;
      ParallelFor(lines, std::max<int64_t>(1, kCopyGrain / pitch), [=](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          // Columns [0, cut) are below the diagonal if the upper triangle is kept, else the kept lower triangle.
          const int64_t cut = std::clamp<int64_t>(line % rows + diagonal + (upper ? 0 : 1), 0, columns) * size;
          const int64_t keep = upper ? cut : 0;
          const int64_t clear = upper ? 0 : cut;
          const int64_t keep_bytes = upper ? pitch - cut : cut;
          char* row = to + line * pitch;
          if (from != to) std::memcpy(row + keep, from + line * pitch + keep, static_cast<size_t>(keep_bytes));
          std::memset(row + clear, 0, static_cast<size_t>(pitch - keep_bytes));
        }
      });
    });
  }

 private:
  bool upper_;
};

NPU_ONNX_KERNEL({
    .type = "Trilu",
    .since = 14,
    .until = 14,
    .inputs = {Input("input", kFixedWidth), OptionalHostInput("k", {DType::kInt64})},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("upper", 1)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<TriluKernel>,
});

}  // namespace
}  // namespace npu
