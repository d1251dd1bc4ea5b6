// npu_one_hot(self; num_classes, depth, on_value, off_value) -> y. The semantics are in npu_one_hot.py.
#include "contrib_ops/tensor/npu_one_hot.h"

#include <algorithm>
#include <limits>

#include "ep/kernels/checked_numbers.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUOneHot::In;
using Out = nodes::NPUOneHot::Out;

constexpr const char* kOp = "npu_one_hot";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

template <class Index>
void Write(const Index* numbers, int64_t count, int64_t depth, int64_t inner, float on, float off, float* y) {
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
        on_(static_cast<float>(info.attributes.Float("on_value"))),
        off_(static_cast<float>(info.attributes.Float("off_value"))) {
    if (GenerationFromEnvironment() != Generation::kNewest) return;
    if (axis_ != -1) {
      depth_ = axis_;
      counted_by_ = "num_classes";
    }
    axis_ = -1;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView numbers = ctx.Input(In::self);
    const int rank = numbers.shape.rank() + 1;
    NPU_CHECK(axis_ >= -rank && axis_ < rank, "[", kOp, "] expected num_classes, the axis of the classes, in [", -rank,
              ", ", rank - 1, "], got ", axis_);
    NPU_CHECK(depth_ >= 0 && depth_ <= kMost, "[", kOp, "] expected ", counted_by_, " from 0 to ", kMost, ", got ",
              depth_);
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    Shape shape(numbers.shape.begin(), static_cast<size_t>(axis));
    shape.push_back(depth_);
    for (int d = axis; d + 1 < rank; ++d) shape.push_back(numbers.shape[d]);
    const TensorView y = ctx.Output(Out::y, DType::kFloat32, shape);
    if (y.elements() == 0) return;
    const int64_t inner = numbers.shape.Elements(axis, rank - 1);
    ctx.Launch(kOp, [=, depth = depth_, on = on_, off = off_] {
      const int64_t count = numbers.elements();
      if (numbers.dtype == DType::kInt32) {
        Write(numbers.as<const int32_t>(), count, depth, inner, on, off, y.as<float>());
      } else {
        Write(numbers.as<const int64_t>(), count, depth, inner, on, off, y.as<float>());
      }
    });
  }

 private:
  int64_t axis_, depth_;
  const char* counted_by_ = "depth";  // the argument that says how many classes there are
  float on_, off_;
};

NPU_KERNEL(NPUOneHot, NpuOneHotKernel);

}  // namespace
}  // namespace npu
