#include <cstring>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

class ConstantOfShapeKernel : public Kernel {
 public:
  explicit ConstantOfShapeKernel(const KernelInfo& info) {
    if (!info.attributes.Has("value")) return;
    const TensorAttribute value = info.attributes.Tensor("value");
    NPU_CHECK(kAnyWidth.Contains(value.dtype) && value.data.size() == BytesFor(value.dtype, 1),
              "[ConstantOfShape] expected value to be one element of a numeric type or bool, got ", value.data.size(),
              " bytes of ", NameOf(value.dtype));
    dtype_ = value.dtype;
    std::memcpy(&value_, value.data.data(), value.data.size());
    const int bits = BitsOf(dtype_);
    if (bits < 8) value_ &= (1u << bits) - 1;
    for (int filled = bits; filled < 8; filled *= 2) value_ |= value_ << filled;
  }
  void Compute(OpContext& ctx) const override {
    const Shape shape(ReadHostInts("ConstantOfShape", "input", ctx.Input(0)));
    const int64_t elements = shape.Elements();  // refuses what is no size before onnxruntime does
    const TensorView y = ctx.Output(0, dtype_, shape);
    if (elements == 0) return;
    const int64_t size = BytesFor(dtype_, 1), n = static_cast<int64_t>(y.bytes()) / size;
    DispatchSize(size, [&](auto type) {
      using T = decltype(type);
      T value;
      std::memcpy(&value, &value_, sizeof(T));
      ctx.Launch("ConstantOfShape", [n, value, to = y.as<T>()] {
        ParallelFor(n, kCheapGrain, [=](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
      });
    });
  }

 private:
  DType dtype_ = DType::kFloat32;  // ONNX's default value is a float32 zero
  uint64_t value_ = 0;             // its bytes, in memory order; of elements that share a byte, all of them
};

NPU_ONNX_KERNEL({
    .type = "ConstantOfShape",
    .since = 9,
    .until = 25,
    .inputs = {HostInput("input", {DType::kInt64})},
    .outputs = {Output("output", kAnyWidth)},
    .attributes = {ValueAttribute("value")},
    .shape_arithmetic = ShapeArithmetic::kStated,
    .make = MakeKernel<ConstantOfShapeKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      if (!node.attributes.Has("value")) return "";
      const DType dtype = node.attributes.Tensor("value").dtype;
      return kAnyWidth.Contains(dtype) ? "" : Concat("ConstantOfShape of ", NameOf(dtype), " is not implemented");
    },
});

}  // namespace
}  // namespace npu
