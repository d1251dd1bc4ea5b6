// Samples of distributions whose parameters are tensors: Poisson, binomial and gamma. Element i depends only on the
// generator's state, on i and on its own parameters. Everything is computed in double and rounded once.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/random/word_stream.h"
#include "ep/runtime/random.h"

namespace npu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// From this mean on, acceptance and rejection is used, below it a search.
constexpr double kSearched = 10;

// log(n!)
double LogFactorial(double n) {
  int sign;
  return ::lgamma_r(n + 1, &sign);
}

struct Poisson {
  static constexpr const char* kName = "poisson";
  static constexpr size_t kParameters = 1;

  static double Sample(WordStream& words, const std::array<double, 1>& parameters) {
    const double rate = parameters[0];
    NPU_CHECK(rate >= 0, "[poisson] expected rates of at least 0, got ", rate);
    if (std::isinf(rate)) return rate;
    if (rate < kSearched) {
      const double least = std::exp(-rate);
      double product = words.Unit(), count = 0;
      for (; product > least; ++count) product *= words.Unit();
      return count;
    }
    // PTRS of Hörmann: "The transformed rejection method for generating Poisson random variables", 1993.
    const double log_rate = std::log(rate), b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
    const double log_inverse_alpha = std::log(1.1239 + 1.1328 / (b - 3.4)), v_r = 0.9277 - 3.6224 / (b - 2);
    while (true) {
      const double u = words.Unit() - 0.5, v = words.Unit(), s = 0.5 - std::fabs(u);
      const double k = std::floor((2 * a / s + b) * u + rate + 0.43);
      if (s >= 0.07 && v <= v_r) return k;
      if (k < 0 || (s < 0.013 && v > s)) continue;
      if (std::log(v) + log_inverse_alpha - std::log(a / (s * s) + b) <= k * log_rate - rate - LogFactorial(k))
        return k;
    }
  }
};

struct Binomial {
  static constexpr const char* kName = "binomial";
  static constexpr size_t kParameters = 2;

  static double Sample(WordStream& words, const std::array<double, 2>& parameters) {
    const auto [given, p] = parameters;
    if (given != given || p != p) return kNan;
    const double n = std::floor(given);
    if (n <= 0 || p <= 0) return 0;
    if (p >= 1) return n;
    return p <= 0.5 ? SampleLower(words, n, p) : n - SampleLower(words, n, 1 - p);
  }

 private:
  // For probabilities up to 1/2.
  static double SampleLower(WordStream& words, double n, double p) {
    if (n * p < kSearched) {
      // The trials between successes are geometric.
      const double log_of_failing = std::log1p(-p);
      double trials = 0, successes = 0;
      while (true) {
        trials += std::ceil(std::log(words.Unit()) / log_of_failing);
        if (trials > n) return successes;
        ++successes;
      }
    }
    // BTRS of Hörmann: "The generation of binomial random variates", 1993.
    const double deviation = std::sqrt(n * p * (1 - p)), b = 1.15 + 2.53 * deviation;
    const double a = -0.0873 + 0.0248 * b + 0.01 * p, v_r = 0.92 - 4.2 / b;
    const double alpha = (2.83 + 5.1 / b) * deviation, log_odds = std::log(p / (1 - p)), m = std::floor((n + 1) * p);
    const double middle = LogFactorial(m) + LogFactorial(n - m);
    while (true) {
      const double u = words.Unit() - 0.5, v = words.Unit(), s = 0.5 - std::fabs(u);
      const double k = std::floor((2 * a / s + b) * u + n * p + 0.5);
      if (s >= 0.07 && v <= v_r) return k;
      if (k < 0 || k > n) continue;
      const double bound = middle - LogFactorial(k) - LogFactorial(n - k) + (k - m) * log_odds;
      if (std::log(v * alpha / (a / (s * s) + b)) <= bound) return k;
    }
  }
};

// Of scale 1.
struct Gamma {
  static constexpr const char* kName = "_standard_gamma";
  static constexpr size_t kParameters = 1;

  static double Sample(WordStream& words, const std::array<double, 1>& parameters) {
    const double shape = parameters[0];
    if (!(shape >= 0)) return kNan;
    if (shape == 0) return 0;
    // Marsaglia and Tsang: "A simple method for generating gamma variables", 2000; a shape below 1 is raised by 1.
    const double factor = shape < 1 ? std::pow(words.Unit(), 1 / shape) : 1;
    const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = words.Normal(), root = 1 + c * x;
      if (root <= 0) continue;
      const double v = root * root * root, square = x * x, u = words.Unit();
      if (u < 1 - 0.0331 * square * square || std::log(u) < 0.5 * square + d * (1 - v + std::log(v)))
        return factor * d * v;
    }
  }
};

template <class Distribution>
class SampleKernel final : public Kernel {
 public:
  static constexpr size_t kParameters = Distribution::kParameters;

  explicit SampleKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override {
    const TensorView& first = ctx.Input(0);
    std::array<TensorView, kParameters> in;
    for (size_t k = 0; k < kParameters; ++k) {
      in[k] = ctx.Input(k);
      NPU_CHECK(in[k] && in[k].dtype == first.dtype && in[k].shape == first.shape, "[", kOp,
                "] expected parameters of one dtype and shape");
    }
    const DrawnSeed seed(static_cast<uint64_t>(ReadHostInt(kOp, "seed", ctx.Input(kParameters))));
    const TensorView out = ctx.Output(0, first.dtype, first.shape);
    const int64_t n = out.elements();
    if (n == 0) return;
    DispatchTypes(kOp, first.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [in, seed, n, to = out.as<T>()] {
        const Philox words{seed.Now()};
        ParallelFor(n, kMathGrain / 16, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            WordStream stream(words, i);
            std::array<double, kParameters> parameters;
            for (size_t k = 0; k < kParameters; ++k)
              parameters[k] = static_cast<double>(Upcast(in[k].template as<const T>()[i]));
            to[i] = Rounded<T>(static_cast<ComputeType<T>>(Distribution::Sample(stream, parameters)));
          }
        });
      });
    });
  }

 private:
  static constexpr const char* kOp = Distribution::kName;
};

template <class Distribution>
OpDef SampleDef(const char* type, std::initializer_list<const char*> parameters) {
  OpDef def{.domain = "npu.aten",
            .type = type,
            .outputs = {Output("out", kAllFloats)},
            .make = MakeKernel<SampleKernel<Distribution>>};
  for (const char* name : parameters) def.inputs.push_back(Input(name, kAllFloats));
  def.inputs.push_back(HostInput("seed", kInt64));
  return def;
}

NPU_ONNX_KERNEL(SampleDef<Poisson>("SamplePoisson", {"rate"}));
NPU_ONNX_KERNEL(SampleDef<Binomial>("SampleBinomial", {"count", "prob"}));
NPU_ONNX_KERNEL(SampleDef<Gamma>("SampleGamma", {"shape"}));

}  // namespace
}  // namespace npu
