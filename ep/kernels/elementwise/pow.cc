// Pow. The output has the base's type, whatever the exponent's. Integer powers of integers are exact
// modulo 2^bits; the constant exponents that exporters write (2, 3, 0.5, ...) cost no call.
#include <cmath>

#include "ep/kernels/elementwise/broadcast.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

constexpr int64_t kBlock = 512;

// base^exponent, wrapping.
template <class T>
T IntegerPower(T base, uint64_t exponent) {
  uint64_t result = 1;
  for (uint64_t factor = static_cast<uint64_t>(base); exponent != 0; exponent >>= 1, factor *= factor) {
    if ((exponent & 1) != 0) result *= factor;
  }
  return static_cast<T>(result);
}

template <class B, class E>
B PowerOf(B base, E exponent) {
  if constexpr (std::is_integral_v<B> && std::is_integral_v<E>) {
    if (std::is_signed_v<E> && exponent < 0) {
      if (base == 1) return 1;
      if constexpr (std::is_signed_v<B>) {
        if (base == -1) return (exponent & 1) != 0 ? B{-1} : B{1};
      }
      return 0;  // the fraction is lost; of 0 too, as in torch: data must not fail a stream
    }
    return IntegerPower(base, static_cast<uint64_t>(exponent));
  } else if constexpr (std::is_integral_v<B>) {
    return SafeCast<B>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  } else if constexpr (std::is_same_v<B, float> && std::is_same_v<E, float>) {
    return std::pow(base, exponent);
  } else {
    return static_cast<B>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
}

// The same exponent for a whole row of floats; false when there is no short form.
template <class C>
bool ConstantPower(const C* base, double exponent, C* out, int64_t n) {
  if (exponent == 2.0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = base[i] * base[i];
  } else if (exponent == 3.0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = base[i] * base[i] * base[i];
  } else if (exponent == 1.0) {
    std::copy(base, base + n, out);
  } else if (exponent == -1.0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = C{1} / base[i];
  } else if (exponent == 0.5) {
    // pow(-0, 0.5) is +0 and pow(-inf, 0.5) is +inf, where sqrt says -0 and NaN.
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const C root = std::sqrt(base[i] + C{0});
      out[i] = base[i] == -std::numeric_limits<C>::infinity() ? std::numeric_limits<C>::infinity() : root;
    }
  } else {
    return false;
  }
  return true;
}

// A block as computed with: the elements themselves, or a copy of them.
template <class T>
const ComputeType<T>* Load(const T* from, int64_t step, ComputeType<T>* buffer, int64_t n) {
  if constexpr (kIsHalf<T>) {
    if (step == 1) {
      ToFloat(from, buffer, n);
      return buffer;
    }
  } else {
    if (step == 1) return from;
  }
  std::fill(buffer, buffer + n, Upcast(*from));
  return buffer;
}

template <class B, class E>
void PowBlock(const B* base, int64_t base_step, const E* exponent, int64_t exponent_step, ComputeType<B>* out,
              int64_t n) {
  using C = ComputeType<B>;
  C base_buffer[kBlock];
  const C* bases = Load(base, base_step, base_buffer, n);
  if constexpr (std::is_floating_point_v<C>) {
    if (exponent_step == 0 && ConstantPower(bases, static_cast<double>(Upcast(*exponent)), out, n)) return;
  }
  ComputeType<E> exponent_buffer[kBlock];
  const ComputeType<E>* exponents = Load(exponent, exponent_step, exponent_buffer, n);
  for (int64_t i = 0; i < n; ++i) out[i] = PowerOf(bases[i], exponents[i]);
}

template <class B, class E>
void PowRow(const B* base, int64_t base_step, const E* exponent, int64_t exponent_step, B* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    const B* from = base + i * base_step;
    const E* by = exponent + i * exponent_step;
    if constexpr (kIsHalf<B>) {
      float results[kBlock];
      PowBlock(from, base_step, by, exponent_step, results, count);
      FromFloat(results, out + i, count);
    } else {
      PowBlock(from, base_step, by, exponent_step, out + i, count);
    }
  }
}

using BaseTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t>;

class PowKernel : public Kernel {
 public:
  explicit PowKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const TensorView y = ctx.Input(1);
    const Shape shape = BroadcastShapes("Pow", x.shape, y.shape);
    DispatchTypes("Pow", x.dtype, BaseTypes{}, [&](auto base_type) {
      DispatchTypes("Pow", y.dtype, NumericTypes{}, [&](auto exponent_type) {
        using B = decltype(base_type);
        using E = decltype(exponent_type);
        const TensorView out = ctx.Output(0, x.dtype, shape);
        const auto plan = PlanBroadcast<2>(shape, {x.shape, y.shape});
        if (plan.total == 0) return;
        ctx.Launch("Pow", [plan, px = x.as<const B>(), py = y.as<const E>(), po = out.as<B>()] {
          ParallelFor(plan.total, kMathGrain, [&](int64_t begin, int64_t end) {
            ForEachRow(plan, begin, end, [&](int64_t to, const std::array<int64_t, 2>& from, int64_t n) {
              PowRow(px + from[0], plan.step[0], py + from[1], plan.step[1], po + to, n);
            });
          });
        });
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .type = "Pow",
    .since = 7,
    .until = 15,
    .inputs = {Input("X", SetOf(BaseTypes{})), Input("Y", kNumeric)},
    .outputs = {Output("Z", SetOf(BaseTypes{}))},
    .may_alias = {{0, 0}},
    .shape_arithmetic = ShapeArithmetic::kElementwise,
    .make = MakeKernel<PowKernel>,
});

}  // namespace
}  // namespace npu
