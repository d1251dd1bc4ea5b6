#include "python/csrc/torch/random_numbers.h"

#include <cmath>
#include <numbers>
#include <type_traits>

#include "ep/runtime/philox.h"
#include "ep/runtime/thread_pool.h"

namespace npu::aten {
namespace {

// In [0, 1), with as many bits as T holds.
template <class T>
T Unit(uint64_t bits) {
  if constexpr (std::is_same_v<T, double>) return static_cast<double>(bits >> 11) * 0x1p-53;
  return static_cast<T>(bits >> 40) * static_cast<T>(0x1p-24);
}

template <class T>
struct Element {
  using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

  static T From(const RandomFill& f, uint64_t bits) {
    if (f.kind == RandomFill::Kind::kInteger) {
      const uint64_t within = f.range == 0 ? bits : bits % f.range;
      const auto value = static_cast<int64_t>(static_cast<uint64_t>(f.first) + within);
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(value);
      else
        return static_cast<T>(static_cast<Real>(value));
    }
    if constexpr (std::is_integral_v<T>) {
      return T{};  // refused before the launch
    } else {
      return Real_(f, bits);
    }
  }

 private:
  static T Real_(const RandomFill& f, uint64_t bits) {
    const Real a = static_cast<Real>(f.a), b = static_cast<Real>(f.b);
    switch (f.kind) {
      case RandomFill::Kind::kUniform: {
        const T value = static_cast<T>(a + (b - a) * Unit<Real>(bits));
        return static_cast<Real>(value) < b ? value : static_cast<T>(a);  // rounding must not reach the open end
      }
      case RandomFill::Kind::kNormal: {
        // Box-Muller on the two halves; the first is in (0, 1], where the logarithm is finite.
        const Real u = static_cast<Real>((static_cast<double>(bits >> 32) + 1.0) * 0x1p-32);
        const Real v = static_cast<Real>(static_cast<double>(bits & 0xffffffffu) * 0x1p-32);
        const Real radius = std::sqrt(Real{-2} * std::log(u));
        return static_cast<T>(a + b * radius * std::cos(Real{2} * std::numbers::pi_v<Real> * v));
      }
      default: {
        // In double, where u is never 1: an exponential is not 0, and may divide.
        const double u = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
        return static_cast<T>(static_cast<Real>(-std::log(u) / f.a));
      }
    }
  }
};

template <class T>
void FillNumbers(const RandomFill& fill, T* out, int64_t n) {
  constexpr int64_t kGrain = 4096;
  const PhiloxState state = fill.position.Now();
  const Philox generator{state.seed};
  ParallelFor((n + 1) / 2, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      uint32_t words[4];
      generator.Fill(state.offset + static_cast<uint64_t>(block), 1, words);
      out[2 * block] = Element<T>::From(fill, uint64_t{words[0]} << 32 | words[1]);
      if (2 * block + 1 < n) out[2 * block + 1] = Element<T>::From(fill, uint64_t{words[2]} << 32 | words[3]);
    }
  });
}

template <class T>
void LaunchFill(Stream& stream, const RandomFill& fill, const TensorView& out) {
  stream.Launch("random", [fill, data = out.as<T>(), n = out.elements()] { FillNumbers(fill, data, n); });
}

}  // namespace

void LaunchRandomFill(Stream& stream, const RandomFill& fill, const TensorView& out) {
  NPU_CHECK(fill.kind == RandomFill::Kind::kInteger || IsFloating(out.dtype),
            "[random] expected a floating point tensor, got ", NameOf(out.dtype));
  if (out.elements() == 0) return;
  switch (out.dtype) {
    case DType::kFloat32:
      return LaunchFill<float>(stream, fill, out);
    case DType::kFloat64:
      return LaunchFill<double>(stream, fill, out);
    case DType::kFloat16:
      return LaunchFill<Float16>(stream, fill, out);
    case DType::kBFloat16:
      return LaunchFill<BFloat16>(stream, fill, out);
    case DType::kBool:
      return LaunchFill<bool>(stream, fill, out);
    case DType::kInt8:
    case DType::kUInt8:
      return LaunchFill<uint8_t>(stream, fill, out);
    case DType::kInt16:
    case DType::kUInt16:
      return LaunchFill<uint16_t>(stream, fill, out);
    case DType::kInt32:
    case DType::kUInt32:
      return LaunchFill<uint32_t>(stream, fill, out);
    case DType::kInt64:
    case DType::kUInt64:
      return LaunchFill<uint64_t>(stream, fill, out);
    default:
      Fail(ErrorCode::kUnsupported, "[random] expected numbers of whole bytes, got ", NameOf(out.dtype));
  }
}

}  // namespace npu::aten
