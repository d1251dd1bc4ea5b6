// Values in device memory that must be within bounds when the task reads them; the caller goes on. A failure is
// reported as those of other kernels are.
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

constexpr const char* kOp = "AssertWithin";

class AssertWithinKernel final : public Kernel {
 public:
  explicit AssertWithinKernel(const KernelInfo& info)
      : low_(info.attributes.Float("low")),
        high_(info.attributes.Float("high")),
        message_(info.attributes.String("message")) {}
  void Compute(OpContext& ctx) const override {
    const TensorView values = ctx.Input(0);
    DispatchTypes(kOp, values.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch("_assert_async",
                 [low = low_, high = high_, message = message_, n = values.elements(), x = values.as<const T>()] {
                   ParallelFor(n, kCheapGrain, [&](int64_t begin, int64_t end) {
                     bool within = true;
                     for (int64_t i = begin; i < end; ++i) {
                       const auto value = static_cast<double>(Upcast(x[i]));
                       within &= value >= low && value <= high;  // false of NaN
                     }
                     NPU_CHECK(within, message);
                   });
                 });
    });
  }

 private:
  double low_, high_;
  std::string message_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = kOp,
    .inputs = {Input("values", kAllFloats)},
    .attributes = {FloatAttribute("low"), FloatAttribute("high"), StringAttribute("message", "")},
    .make = MakeKernel<AssertWithinKernel>,
});

}  // namespace
}  // namespace npu
