// OneHot: the depth decides the shape and is in host memory. An index outside [-depth, depth) is not an error: its row
// is all off.
#include <algorithm>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

constexpr DTypeSet kValues = kIntegers | DTypeSet{DType::kFloat32, DType::kFloat16, DType::kFloat64, DType::kBool};
using IndexTypes = Types<int64_t, int32_t, float>;

int64_t ReadDepth(const TensorView& depth) {
  NPU_CHECK(depth.elements() == 1, "[OneHot] expected depth to be one value, got shape ", depth.shape);
  return DispatchTypes("OneHot", depth.dtype, IndexTypes{}, [&](auto type) {
    const auto value = static_cast<double>(*depth.as<const decltype(type)>());
    NPU_CHECK(value >= 0 && value < 0x1p53, "[OneHot] expected a depth from 0 to 2^53, got ", value);
    return static_cast<int64_t>(value);
  });
}

class OneHotKernel : public Kernel {
 public:
  explicit OneHotKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView indices = ctx.Input(0);
    const TensorView values = ctx.Input(2);
    const int64_t depth = ReadDepth(ctx.Input(1));
    NPU_CHECK(values.elements() == 2, "[OneHot] expected values to be [off, on], got shape ", values.shape);
    const int rank = indices.shape.rank();
    const int axis = NormalizeAxis("OneHot", axis_, rank + 1);
    Shape shape(indices.shape.begin(), axis);
    shape.push_back(depth);
    for (int d = axis; d < rank; ++d) shape.push_back(indices.shape[d]);
    const TensorView y = ctx.Output(0, values.dtype, shape);
    if (y.elements() == 0) return;
    const int64_t inner = indices.shape.Elements(axis, rank);
    DispatchSize(BitsOf(values.dtype) / 8, [&](auto element) {
      DispatchTypes("OneHot", indices.dtype, IndexTypes{}, [&](auto type) {
        using T = decltype(element);
        using Index = decltype(type);
        const int64_t count = indices.elements();
        ctx.Launch("OneHot", [=, at = indices.as<const Index>(), value = values.as<const T>(), to = y.as<T>()] {
          const T off = value[0], on = value[1];
          ParallelFor(count * depth, kCheapGrain, [=](int64_t b, int64_t e) { std::fill(to + b, to + e, off); });
          for (int64_t i = 0; i < count; ++i) {
            // Exact for every index in range; NaN is not in range.
            const auto index = static_cast<double>(ReadOnce(at + i));
            if (!(index >= static_cast<double>(-depth) && index < static_cast<double>(depth))) continue;
            const auto from_either_end = static_cast<int64_t>(index);
            const int64_t hot = from_either_end < 0 ? from_either_end + depth : from_either_end;
            to[(i / inner * depth + hot) * inner + i % inner] = on;
          }
        });
      });
    });
  }

 private:
  int64_t axis_;
};

constexpr DTypeSet kIndexTypes = SetOf(IndexTypes{});

NPU_ONNX_KERNEL({
    .type = "OneHot",
    .since = 9,
    .until = 11,
    .inputs = {Input("indices", kIndexTypes), HostInput("depth", kIndexTypes), Input("values", kValues)},
    .outputs = {Output("output", kValues)},
    .attributes = {IntAttribute("axis", -1)},
    .make = MakeKernel<OneHotKernel>,
});

}  // namespace
}  // namespace npu
