// Shape and Size: their outputs are in host memory and are known before the launch; the input's data is never read.
#include <algorithm>
#include <limits>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class ShapeKernel : public Kernel {
 public:
  explicit ShapeKernel(const KernelInfo& info)
      : start_(info.attributes.Int("start")), end_(info.attributes.Int("end")) {}
  void Compute(OpContext& ctx) const override {
    const Shape shape = ctx.Input(0).shape;
    const int rank = shape.rank();
    const int start = Clamp(start_, rank);
    const int end = std::max(start, Clamp(end_, rank));
    const TensorView out = ctx.Output(0, DType::kInt64, Shape{end - start});
    std::copy(shape.begin() + start, shape.begin() + end, out.as<int64_t>());
  }

 private:
  static int Clamp(int64_t axis, int rank) {
    return static_cast<int>(std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank));
  }

  int64_t start_, end_;
};

class SizeKernel : public Kernel {
 public:
  explicit SizeKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    *ctx.Output(0, DType::kInt64, Shape{}).as<int64_t>() = ctx.Input(0).elements();
  }
};

NPU_ONNX_KERNEL({
    .type = "Shape",
    .since = 1,
    .until = 25,
    .inputs = {Input("data", kAnyWidth)},
    .outputs = {HostOutput("shape", {DType::kInt64})},
    .attributes = {IntAttribute("end", std::numeric_limits<int64_t>::max()), IntAttribute("start", 0)},
    .shape_arithmetic = ShapeArithmetic::kShape,
    .make = MakeKernel<ShapeKernel>,
});
NPU_ONNX_KERNEL({
    .type = "Size",
    .since = 1,
    .until = 25,
    .inputs = {Input("data", kAnyWidth)},
    .outputs = {HostOutput("size", {DType::kInt64})},
    .shape_arithmetic = ShapeArithmetic::kShape,
    .make = MakeKernel<SizeKernel>,
});

}  // namespace
}  // namespace npu
