// TensorScatter (ai.onnx 24): writes new rows into a cache, from a place of its own in each batch entry on.
#include <cstring>
#include <string>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "TensorScatter";

struct Rows {
  char* cache;
  const char* update;
  const int64_t* first;  // of each batch entry; null: 0
  int64_t batch, per_entry, capacity, count, bytes;
  bool circular;

  void Write() const {
    ParallelFor(batch * per_entry, std::max<int64_t>(1, kCopyGrain / std::max<int64_t>(1, count * bytes)),
                [this](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) WriteOne(i);
                });
  }

 private:
  void WriteOne(int64_t i) const {
    const int64_t given = first == nullptr ? 0 : ReadOnce(first + i / per_entry);
    const int64_t last = circular ? INT64_MAX : capacity - count;
    NPU_OP_CHECK(kOp, given >= 0 && given <= last, "expected write_indices from 0 to ", last, " of batch entry ",
                 i / per_entry, ", got ", given);
    const int64_t at = circular ? given % capacity : given, straight = std::min(count, capacity - at);
    char* to = cache + i * capacity * bytes;
    const char* from = update + i * count * bytes;
    std::memcpy(to + at * bytes, from, static_cast<size_t>(straight * bytes));
    std::memcpy(to, from + straight * bytes, static_cast<size_t>((count - straight) * bytes));
  }
};

class TensorScatterKernel final : public Kernel {
 public:
  explicit TensorScatterKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {
    const std::string mode = info.attributes.String("mode");
    NPU_OP_CHECK(kOp, mode == "linear" || mode == "circular", "expected mode linear or circular, got ", mode);
    circular_ = mode == "circular";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView past = ctx.Input(0), update = ctx.Input(1), first = ctx.Input(2);
    const int axis = NormalizeAxis(kOp, axis_, past.shape.rank());
    NPU_OP_CHECK(kOp, axis > 0, "expected an axis that is not the batch, got ", axis_);
    Shape wanted = past.shape;
    if (update.shape.rank() == wanted.rank()) wanted[axis] = update.shape[axis];
    NPU_OP_CHECK(kOp, update.shape == wanted && wanted[axis] <= past.shape[axis] && update.dtype == past.dtype,
                 "expected an update like past_cache ", past.shape, " with at most as many rows along axis ", axis,
                 ", got ", update.shape);
    NPU_OP_CHECK(kOp, !first || first.shape == Shape{past.shape[0]}, "expected write_indices of shape ",
                 Shape{past.shape[0]}, ", got ", first.shape);
    const TensorView present = ctx.Output(0, past.dtype, past.shape);
    LaunchCopy(ctx, kOp, past, present);
    if (update.elements() == 0) return;
    const int64_t bytes = past.shape.Elements(axis + 1, past.shape.rank()) * (BitsOf(past.dtype) / 8);
    const Rows rows{present.as<char>(),
                    update.as<const char>(),
                    first.as<const int64_t>(),
                    past.shape[0],
                    past.shape.Elements(1, axis),
                    past.shape[axis],
                    update.shape[axis],
                    bytes,
                    circular_};
    ctx.Launch(kOp, [rows] { rows.Write(); });
  }

 private:
  int64_t axis_;
  bool circular_;
};

NPU_ONNX_KERNEL({
    .type = "TensorScatter",
    .since = 24,
    .until = 24,
    .inputs = {Input("past_cache", kWholeBytes), Input("update", kWholeBytes), OptionalInput("write_indices", kInt64)},
    .outputs = {Output("present_cache", kWholeBytes)},
    .attributes = {StringAttribute("mode", "linear"), IntAttribute("axis", -2)},
    .may_alias = {{0, 0}},
    .make = MakeKernel<TensorScatterKernel>,
});

}  // namespace
}  // namespace npu
