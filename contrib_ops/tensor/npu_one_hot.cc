// npu_one_hot(self; num_classes, depth, on_value, off_value) -> y. The semantics are in npu_one_hot.py.
#include "contrib_ops/tensor/npu_one_hot.h"

#include <algorithm>
#include <limits>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/read_back.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUOneHot::In;
using Out = nodes::NPUOneHot::Out;

constexpr const char* kOp = "npu_one_hot";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

template <class Index, class T>
void Write(const Index* numbers, int64_t count, int64_t depth, int64_t inner, T on, T off, T* y) {
  ParallelFor(count * depth, 16384, [=](int64_t begin, int64_t end) { std::fill(y + begin, y + end, off); });
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = ReadOnce(numbers + i);
    if (number >= 0 && number < depth) y[(i / inner * depth + number) * inner + i % inner] = on;
  }
}

class NpuOneHotKernel final : public Kernel {
 public:
  explicit NpuOneHotKernel(const KernelInfo& info)
      : axis_(info.attributes.Int("num_classes")),
        depth_(info.attributes.Int("depth")),
        dtype_(static_cast<DType>(info.attributes.Int("dtype", static_cast<int64_t>(DType::kFloat32)))),
        counts_(depth_ == -1 && (info.attributes.Has("dtype") || GenerationFromEnvironment() == Generation::kNewest)),
        on_(info.attributes.Float("on_value")),
        off_(info.attributes.Float("off_value")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView numbers = ctx.Input(In::self);
    const int rank = numbers.shape.rank() + 1;
    NPU_OP_CHECK(kOp, axis_ >= -rank && axis_ < rank, "expected num_classes, the axis of the classes, in [", -rank,
                 ", ", rank - 1, "], got ", axis_);
    NPU_OP_CHECK(kOp, dtype_ == DType::kFloat32 || dtype_ == DType::kInt64 || dtype_ == DType::kBool,
                 "expected dtype 1 (float32), 7 (int64) or 9 (bool), got ", static_cast<int64_t>(dtype_));
    const int64_t depth = counts_ ? Count(ctx, numbers) : depth_;
    NPU_OP_CHECK(kOp, depth >= 0 && depth <= kMost, "expected depth from 0 to ", kMost, ", got ", depth);
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    Shape shape(numbers.shape.begin(), static_cast<size_t>(axis));
    shape.push_back(depth);
    for (int d = axis; d + 1 < rank; ++d) shape.push_back(numbers.shape[d]);
    const TensorView y = ctx.Output(Out::y, dtype_, shape);
    if (y.elements() == 0) return;
    const int64_t inner = numbers.shape.Elements(axis, rank - 1);
    DispatchTypes(kOp, dtype_, Types<float, int64_t, bool>{}, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [=, on = static_cast<T>(on_), off = static_cast<T>(off_)] {
        const int64_t count = numbers.elements();
        if (numbers.dtype == DType::kInt32) {
          Write(numbers.as<const int32_t>(), count, depth, inner, on, off, y.as<T>());
        } else {
          Write(numbers.as<const int64_t>(), count, depth, inner, on, off, y.as<T>());
        }
      });
    });
  }

 private:
  // One more than the greatest number, at least one.
  static int64_t Count(OpContext& ctx, const TensorView& numbers) {
    NPU_OP_CHECK(kOp, numbers.elements() > 0, "expected depth, for a trace or no numbers do not count classes, got -1");
    auto* count = static_cast<int64_t*>(ctx.Workspace(sizeof(int64_t)));
    ctx.Launch(kOp, [=] {
      int64_t most = 0;
      for (int64_t i = 0; i < numbers.elements(); ++i)
        most = std::max<int64_t>(
            most, numbers.dtype == DType::kInt32 ? numbers.as<const int32_t>()[i] : numbers.as<const int64_t>()[i]);
      *count = std::min(most, kMost) + 1;
    });
    return ReadBack(ctx, count);
  }

  int64_t axis_, depth_;
  DType dtype_;
  bool counts_;  // whether the numbers say how many classes there are
  double on_, off_;
};

NPU_KERNEL(NPUOneHot, NpuOneHotKernel);

}  // namespace
}  // namespace npu
