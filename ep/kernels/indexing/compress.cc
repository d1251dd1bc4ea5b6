// Compress (ai.onnx 9, 11): the slices along an axis, or the elements, whose condition is true.
#include <algorithm>
#include <cstring>
#include <optional>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/read_back.h"

namespace npu {
namespace {

constexpr const char* kOp = "Compress";

// y[o, i] = x[o, rows[i]] for rows of `bytes`, o below `outer`, i below `count`; x has `length` rows in each o.
void CopyChosen(const char* x, int64_t length, const int64_t* rows, int64_t outer, int64_t count, int64_t bytes,
                char* y) {
  ParallelFor(outer * count, std::max<int64_t>(1, kCopyGrain / bytes), [=](int64_t begin, int64_t end) {
    const auto each = [&](const auto& copy) {
      for (int64_t item = begin; item < end; ++item)
        copy(y + item * bytes, x + (item / count * length + rows[item % count]) * bytes);
    };
    if (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) {  // a copy of known size is one instruction
      DispatchSize(static_cast<int>(bytes), [&](auto element) {
        each([](char* to, const char* from) { std::memcpy(to, from, sizeof element); });
      });
    } else {
      each([&](char* to, const char* from) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    }
  });
}

class CompressKernel final : public Kernel {
 public:
  explicit CompressKernel(const KernelInfo& info) {
    if (info.attributes.Has("axis")) axis_ = info.attributes.Int("axis");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), condition = ctx.Input(1);
    NPU_CHECK(condition && condition.shape.rank() == 1, "[", kOp, "] expected a condition of rank 1, got shape ",
              condition.shape);
    int64_t outer = 1, length = x.elements(), inner = 1;
    const int axis = axis_ ? NormalizeAxis(kOp, *axis_, x.shape.rank()) : 0;
    if (axis_) {
      outer = x.shape.Elements(0, axis);
      length = x.shape[axis];
      inner = x.shape.Elements(axis + 1, x.shape.rank());
    }
    const int64_t given = std::min(condition.elements(), length);  // slices beyond the condition are left out
    int64_t count = 0;
    int64_t* rows = nullptr;
    if (given > 0) {
      rows = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, given + 1)));
      ctx.Launch(kOp, [=, chosen = condition.as<const uint8_t>()] {
        int64_t found = 0;
        for (int64_t i = 0; i < given; ++i) {
          rows[found] = i;
          found += chosen[i] != 0;
        }
        rows[given] = found;
      });
      count = ReadBack(ctx, rows + given);
    }
    Shape shape{count};
    if (axis_) {
      shape = x.shape;
      shape[axis] = count;
    }
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [=, bytes = inner * (BitsOf(x.dtype) / 8), from = x.as<const char>(), to = y.as<char>()] {
      CopyChosen(from, length, rows, outer, count, bytes, to);
    });
  }

 private:
  std::optional<int64_t> axis_;
};

NPU_ONNX_KERNEL({
    .type = "Compress",
    .since = 9,
    .until = 11,
    .inputs = {Input("input", kWithoutBFloat16), Input("condition", kBool)},
    .outputs = {Output("output", kWithoutBFloat16)},
    .attributes = {IntAttribute("axis")},
    .make = MakeKernel<CompressKernel>,
});

}  // namespace
}  // namespace npu
