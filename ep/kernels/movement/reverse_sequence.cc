// ReverseSequence (ai.onnx 10): the first sequence_lens[b] steps of each sequence in reverse order.
#include <cstring>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "ReverseSequence";

class ReverseSequenceKernel final : public Kernel {
 public:
  explicit ReverseSequenceKernel(const KernelInfo& info)
      : batch_axis_(info.attributes.Int("batch_axis")), time_axis_(info.attributes.Int("time_axis")) {
    NPU_OP_CHECK(kOp, (batch_axis_ == 0 && time_axis_ == 1) || (batch_axis_ == 1 && time_axis_ == 0),
                 "expected a batch_axis and a time_axis of 0 and 1, got ", batch_axis_, " and ", time_axis_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), lengths = ctx.Input(1);
    NPU_OP_CHECK(kOp, x.shape.rank() >= 2, "expected an input of rank 2 or more, got shape ", x.shape);
    const int64_t batch = x.shape[static_cast<int>(batch_axis_)], steps = x.shape[static_cast<int>(time_axis_)];
    NPU_OP_CHECK(kOp, lengths.shape == Shape{batch}, "expected sequence_lens of shape ", Shape{batch}, ", got ",
                 lengths.shape);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (x.elements() == 0) return;
    const auto bytes = static_cast<int64_t>(BytesFor(x.dtype, x.shape.Elements(2, x.shape.rank())));
    ctx.Launch(kOp, [=, by_batch = batch_axis_ == 0, at = lengths.as<const int64_t>(), from = x.as<const char>(),
                     to = y.as<char>()] {
      const CheckedNumbers length(kOp, "sequence_lens", at, 0, steps + 1);
      length.CheckFirst(batch);
      const auto row = [&](int64_t b, int64_t t) { return (by_batch ? b * steps + t : t * batch + b) * bytes; };
      ParallelFor(batch * steps, RowGrain(bytes), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / steps, t = i % steps, reversed = length[b];
          std::memcpy(to + row(b, t), from + row(b, t < reversed ? reversed - 1 - t : t), static_cast<size_t>(bytes));
        }
      });
    });
  }

 private:
  int64_t batch_axis_, time_axis_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 10,
    .until = 10,
    .inputs = {Input("input", kWithoutBFloat16), Input("sequence_lens", {DType::kInt64})},
    .outputs = {Output("Y", kWithoutBFloat16)},
    .attributes = {IntAttribute("batch_axis", 1), IntAttribute("time_axis", 0)},
    .make = MakeKernel<ReverseSequenceKernel>,
});

}  // namespace
}  // namespace npu
