// torch's mode: the most frequent element of each line, the smallest one of several, and its last position. NaN is
// equal to nothing, itself included, and greater than every number.
#include <vector>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/sorted_positions.h"

namespace npu {
namespace {

constexpr const char* kOp = "mode";

// The position of the mode of `line`. `keys` has room for two keys of each element.
template <class Key, class C>
int64_t PlaceOfMode(const std::vector<C>& line, std::vector<Key>& keys) {
  const auto n = static_cast<int64_t>(line.size());
  for (int64_t i = 0; i < n; ++i) keys[static_cast<size_t>(i)] = {UnsignedKey(line[static_cast<size_t>(i)]), i};
  SortKeys(keys.data(), n, keys.data() + n);
  const auto at = [&](int64_t i) { return line[static_cast<size_t>(keys[static_cast<size_t>(i)].position())]; };
  int64_t most = 0, run = 0, place = 0;
  for (int64_t i = 0; i < n; ++i) {
    ++run;
    if (i + 1 < n && at(i) == at(i + 1)) continue;
    if (run > most) {
      most = run;
      place = keys[static_cast<size_t>(i)].position();
    }
    run = 0;
  }
  return place;
}

class ModeKernel : public Kernel {
 public:
  explicit ModeKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int axis = NormalizeAxis(kOp, axis_, x.shape.rank());
    Shape shape = x.shape;
    shape[axis] = 1;
    const TensorView values = ctx.Output(0, x.dtype, shape), indices = ctx.Output(1, DType::kInt64, shape);
    NPU_CHECK(values && indices, "[", kOp, "] expected values and indices to be asked for together");
    if (values.elements() == 0) return;
    NPU_CHECK(x.shape[axis] > 0, "[", kOp, "] expected a dimension with elements, got shape ", x.shape);
    DispatchTypes(kOp, x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [view = ViewAround(x.shape, axis), from = x.as<const T>(), to = values.as<T>(),
                       at = indices.as<int64_t>()] {
        ParallelFor(view.outer * view.inner, RowGrain(16 * view.n), [&](int64_t begin, int64_t end) {
          std::vector<ComputeType<T>> line(static_cast<size_t>(view.n));
          WithKeyType<ComputeType<T>>(view.n, [&](auto key) {
            std::vector<decltype(key)> keys(static_cast<size_t>(2 * view.n));
            for (int64_t k = begin; k < end; ++k) {
              const T* first = from + k / view.inner * view.n * view.inner + k % view.inner;
              for (int64_t i = 0; i < view.n; ++i) line[static_cast<size_t>(i)] = Upcast(first[i * view.inner]);
              at[k] = PlaceOfMode(line, keys);
              to[k] = Rounded<T>(line[static_cast<size_t>(at[k])]);
            }
          });
        });
      });
    });
  }

 private:
  int64_t axis_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "Mode",
    .inputs = {Input("x", kNumeric)},
    .outputs = {Output("values", kNumeric), Output("indices", kInt64)},
    .attributes = {RequiredInt("axis")},
    .make = MakeKernel<ModeKernel>,
});

}  // namespace
}  // namespace npu
