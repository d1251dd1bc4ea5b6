// npu_layer_norm_eval(input, weight?, bias?; normalized_shape, eps) -> y. The semantics are in npu_layer_norm_eval.py.
#include "contrib_ops/norm/npu_layer_norm_eval.h"

#include "ep/kernels/normalization/moments.h"
#include "ep/kernels/normalization/trailing_axes.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPULayerNormEval::In;
using Out = nodes::NPULayerNormEval::Out;

constexpr const char* kOp = "npu_layer_norm_eval";

class LayerNormEvalKernel final : public Kernel {
 public:
  explicit LayerNormEvalKernel(const KernelInfo& info)
      : normalized_shape_(info.attributes.Ints("normalized_shape")), eps_(info.attributes.Float("eps")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), weight = ctx.Input(In::weight), bias = ctx.Input(In::bias);
    NPU_OP_CHECK(kOp, x, "expected the tensor input");
    const int leading = LeadingAxes(kOp, "normalized_shape", normalized_shape_, "input", x.shape);
    for (const auto& [name, t] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
      NPU_OP_CHECK(kOp, !*t || t->shape == normalized_shape_, "expected ", name, " of shape ", normalized_shape_,
                   ", got ", t->shape);
      NPU_OP_CHECK(kOp, !*t || t->dtype == x.dtype, "expected ", name, " of input's dtype ", NameOf(x.dtype), ", got ",
                   NameOf(t->dtype));
    }
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    const int64_t rows = x.shape.Elements(0, leading), n = normalized_shape_.Elements();
    if (x.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [in = x.as<T>(), gamma = weight.as<T>(), beta = bias.as<T>(), out = y.as<T>(), rows, n,
                       eps = eps_] {
        ParallelFor(rows, RowGrain(n), [&](int64_t begin, int64_t end) {
          // Converted a block at a time, thrice: rows of floats would not stay in the L1 cache.
          InBlock<T> block;
          for (int64_t row = begin; row < end; ++row) {
            const auto load = [&, x = in + row * n](int64_t at, int64_t count) { return block.Load(x + at, count); };
            NormalizeRow(n, RowMoments(n, eps, load), load, gamma, beta, out + row * n);
          }
        });
      });
    });
  }

 private:
  Shape normalized_shape_;
  double eps_;
};

NPU_KERNEL(NPULayerNormEval, LayerNormEvalKernel);

}  // namespace
}  // namespace npu
