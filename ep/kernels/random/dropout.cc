// Dropout (ai.onnx 7 to 22): the input itself, and in training mode each element with the probability `ratio` 0 and
// otherwise divided by 1 - ratio.
#include <algorithm>

#include "ep/kernels/early_floats.h"
#include "ep/kernels/elementwise/one_if.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/random/distributions.h"
#include "ep/kernels/random/node_generator.h"

namespace npu {
namespace {

constexpr const char* kOp = "Dropout";
constexpr float kRatio = 0.5f;  // the default

template <class T>
void Drop(const Philox& generator, int64_t begin, int64_t end, double ratio, const T* x, T* y, uint8_t* mask) {
  using C = ComputeType<T>;
  const C scale = static_cast<C>(ratio < 1 ? 1 / (1 - ratio) : 0);
  ForEachBits(generator, static_cast<uint64_t>(begin / 2), end - begin, [=](int64_t i, uint64_t bits) {
    const int64_t at = begin + i;
    const bool kept = Unit<double>(bits) >= ratio;
    if (mask != nullptr) mask[at] = kept;
    y[at] = kept ? Rounded<T>(Upcast(x[at]) * scale) : T{};
  });
}

class DropoutKernel final : public Kernel {
 public:
  explicit DropoutKernel(const KernelInfo& info) : generator_(info.attributes), bool_mask_(info.since_version >= 10) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const double ratio = ReadRatio(ctx.Input(1));
    const TensorView training = ctx.Input(2);
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    const TensorView mask = ctx.Output(1, bool_mask_ ? DType::kBool : x.dtype, x.shape);
    const int64_t n = x.elements();
    if (n == 0) return;
    if (training && training.elements() == 1 && *training.as<const uint8_t>() != 0 && ratio > 0)
      return LaunchDrop(ctx, ratio, x, y, mask);
    LaunchCopy(ctx, kOp, x, y);
    if (!mask) return;
    DispatchTypes(kOp, mask.dtype, FixedWidthTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [n, to = mask.as<T>()] { std::fill_n(to, n, OneIf<T>(true)); });
    });
  }

 private:
  static double ReadRatio(const TensorView& view) {
    if (!view) return kRatio;
    NPU_OP_CHECK(kOp, view.elements() == 1, "expected a scalar ratio, got shape ", view.shape);
    const double ratio = DispatchTypes(kOp, view.dtype, FloatTypes{}, [&](auto type) {
      return static_cast<double>(Upcast(*view.as<const decltype(type)>()));
    });
    NPU_OP_CHECK(kOp, ratio >= 0 && ratio < 1, "expected a ratio from 0 to below 1, got ", ratio);
    return ratio;
  }
  void LaunchDrop(OpContext& ctx, double ratio, const TensorView& x, const TensorView& y,
                  const TensorView& mask) const {
    const DrawnSeed seed = generator_.Draw(ctx.stream());
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=, n = x.elements()] {
        const Philox words{seed.Now(), 0};
        ParallelFor((n + 1) / 2, kMathGrain, [&](int64_t begin, int64_t end) {
          Drop(words, 2 * begin, std::min(2 * end, n), ratio, x.as<const T>(), y.as<T>(), mask.as<uint8_t>());
        });
      });
    });
  }

  NodeGenerator generator_;
  bool bool_mask_;  // before version 10 the mask has the input's type
};

OpDef Definition(int since, int until, DTypeSet masks) {
  return {
      .type = kOp,
      .since = since,
      .until = until,
      .inputs = {Input("data", kEarlyFloats)},
      .outputs = {Output("output", kEarlyFloats), OptionalOutput("mask", masks)},
      .attributes = {FloatAttribute("ratio", kRatio)},
      .make = MakeKernel<DropoutKernel>,
  };
}

NPU_ONNX_KERNEL(Definition(7, 7, kEarlyFloats));
NPU_ONNX_KERNEL(Definition(10, 10, kBool));
NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 12,
    .until = 22,
    .inputs = {Input("data", kAllFloats), OptionalHostInput("ratio", kAllFloats),
               OptionalHostInput("training_mode", kBool)},
    .outputs = {Output("output", kAllFloats), OptionalOutput("mask", kBool)},
    .attributes = {IntAttribute("seed")},
    .make = MakeKernel<DropoutKernel>,
});

}  // namespace
}  // namespace npu
