// Shape and Size: their outputs live in host memory and are known before anything is launched; the data
// of the input is never read.
#include <algorithm>
#include <limits>

#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class ShapeKernel : public Kernel {
 public:
  explicit ShapeKernel(const KernelInfo& info)
      : start_(info.attributes.Int("start", 0)),
        end_(info.attributes.Int("end", std::numeric_limits<int64_t>::max())) {}
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

OpDef ShapeDef() {
  OpDef def = OnnxDef("Shape", 1, 25, {{"data", kFixedWidth}}, {{"shape", {DType::kInt64}, false, false, true}},
                      &MakeKernel<ShapeKernel>);
  def.attributes = {IntAttribute("end", std::numeric_limits<int64_t>::max()), IntAttribute("start", 0)};
  return def;
}

NPU_ONNX_KERNEL(ShapeDef());
NPU_ONNX_KERNEL(OnnxDef("Size", 1, 25, {{"data", kFixedWidth}}, {{"size", {DType::kInt64}, false, false, true}},
                        &MakeKernel<SizeKernel>));

}  // namespace
}  // namespace npu
