// The gradient of the distances with respect to the first matrix.
#include <algorithm>
#include <vector>

#include "ep/kernels/distance/norm.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

// The derivative of a distance with respect to one difference d. In the infinity norm it is the sign of d where |d|,
// rounded to T like the distance, equals the distance.
template <NormKind norm, class T>
ComputeType<T> Slope(ComputeType<T> d, ComputeType<T> distance, ComputeType<T> p) {
  using C = ComputeType<T>;
  const C size = std::fabs(d), sign = static_cast<C>((d > 0) - (d < 0));
  if (norm == NormKind::kZero || distance == 0 || d == 0) return 0;
  if constexpr (norm == NormKind::kOne) return sign;
  if constexpr (norm == NormKind::kTwo) return d / distance;
  if constexpr (norm == NormKind::kInfinite) return Upcast(Rounded<T>(size)) == distance ? sign : C{0};
  return sign * Power(size / distance, p - 1);
}

// The gradient of one row x, from its distances to all rows y and their gradients; `sums` is scratch.
template <NormKind norm, class T>
void RowGradient(const MatrixPair& in, const T* x, const T* y, const T* grad, const T* distances, ComputeType<T> p,
                 ComputeType<T>* __restrict sums, T* to) {
  using C = ComputeType<T>;
  std::fill_n(sums, in.width, C{0});
  for (int64_t j = 0; j < in.others; ++j, y += in.width) {
    const C g = Upcast(grad[j]), distance = Upcast(distances[j]);
    for (int64_t k = 0; k < in.width; ++k) sums[k] += g * Slope<norm, T>(Upcast(x[k]) - Upcast(y[k]), distance, p);
  }
  for (int64_t k = 0; k < in.width; ++k) to[k] = Rounded<T>(sums[k]);
}

class PairwiseDistanceGradKernel : public Kernel {
 public:
  explicit PairwiseDistanceGradKernel(const KernelInfo& info) : p_(CheckedPower(kOp, info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const MatrixPair in(kOp, ctx);
    const TensorView grad = ctx.Input(2), distances = ctx.Input(3);
    for (const TensorView& t : {grad, distances})
      NPU_OP_CHECK(kOp, t && t.dtype == in.first.dtype && t.shape == in.DistanceShape(),
                   "expected gradients and distances ", NameOf(in.first.dtype), " of shape ", in.DistanceShape(),
                   ", got ", NameOf(t.dtype), " of ", t.shape);
    const TensorView out = ctx.Output(0, in.first.dtype, in.first.shape);
    if (out.elements() == 0) return;
    DispatchTypes(kOp, in.first.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      DispatchNorm(p_, [&](auto norm) {
        ctx.Launch(
            kOp, [in, p = static_cast<ComputeType<T>>(p_), x = in.first.as<const T>(), y = in.second.as<const T>(),
                  g = grad.as<const T>(), d = distances.as<const T>(), to = out.as<T>()] {
              ParallelFor(in.batch * in.rows, 1, [&](int64_t begin, int64_t end) {
                std::vector<ComputeType<T>> sums(static_cast<size_t>(in.width));
                for (int64_t row = begin; row < end; ++row)
                  RowGradient<decltype(norm)::value>(in, x + row * in.width, y + row / in.rows * in.others * in.width,
                                                     g + row * in.others, d + row * in.others, p, sums.data(),
                                                     to + row * in.width);
              });
            });
      });
    });
  }

 private:
  static constexpr const char* kOp = "cdist_backward";
  double p_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "PairwiseDistanceGrad",
    .inputs = {Input("first", kAllFloats), Input("second", kAllFloats), Input("grad", kAllFloats),
               Input("distances", kAllFloats)},
    .outputs = {Output("first_grad", kAllFloats)},
    .attributes = {FloatAttribute("p", 2.0)},
    .make = MakeKernel<PairwiseDistanceGradKernel>,
});

}  // namespace
}  // namespace npu
