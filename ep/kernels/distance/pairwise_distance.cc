// Always computed from differences: the matmul form that torch uses for many rows loses small distances to rounding.
#include "ep/kernels/distance/norm.h"

namespace npu {
namespace {

template <NormKind norm, class T>
ComputeType<T> Distance(const T* x, const T* y, int64_t width, ComputeType<T> p) {
  using C = ComputeType<T>;
  const auto difference = [=](int64_t k) { return std::fabs(Upcast(x[k]) - Upcast(y[k])); };
  C sum = 0;
  if constexpr (norm == NormKind::kInfinite) {
    for (int64_t k = 0; k < width; ++k) {
      const C d = difference(k);
      sum = d > sum || d != d ? d : sum;  // a NaN difference makes the distance NaN
    }
    return sum;
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < width; ++k) {
      const C d = difference(k);
      if constexpr (norm == NormKind::kZero) sum += d != 0 ? C{1} : C{0};
      if constexpr (norm == NormKind::kOne) sum += d;
      if constexpr (norm == NormKind::kTwo) sum += d * d;
      if constexpr (norm == NormKind::kOther) sum += Power(d, p);
    }
    if constexpr (norm == NormKind::kTwo) return std::sqrt(sum);
    if constexpr (norm == NormKind::kOther) return std::pow(sum, 1 / p);
    return sum;
  }
}

class PairwiseDistanceKernel : public Kernel {
 public:
  explicit PairwiseDistanceKernel(const KernelInfo& info) : p_(CheckedPower("cdist", info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const MatrixPair in("cdist", ctx);
    const TensorView out = ctx.Output(0, in.first.dtype, in.DistanceShape());
    if (out.elements() == 0) return;
    DispatchTypes("cdist", in.first.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      DispatchNorm(p_, [&](auto norm) {
        ctx.Launch("cdist", [in, p = static_cast<ComputeType<T>>(p_), x = in.first.as<const T>(),
                             y = in.second.as<const T>(), n = out.elements(), to = out.as<T>()] {
          ParallelFor(n, kCheapGrain / (in.width + 1) + 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const int64_t row = i / in.others, other = row / in.rows * in.others + i % in.others;
              to[i] =
                  Rounded<T>(Distance<decltype(norm)::value>(x + row * in.width, y + other * in.width, in.width, p));
            }
          });
        });
      });
    });
  }

 private:
  double p_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "PairwiseDistance",
    .inputs = {Input("first", kAllFloats), Input("second", kAllFloats)},
    .outputs = {Output("distances", kAllFloats)},
    .attributes = {FloatAttribute("p", 2.0)},
    .make = MakeKernel<PairwiseDistanceKernel>,
});

}  // namespace
}  // namespace npu
