// The activation that a fused operator applies to its result: the attributes `activation`, the name of an
// ONNX operator (or Silu, GeluTanh), and `activation_params`, its numbers.
#pragma once

#include <array>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {

class OutputActivation {
 public:
  // No activation.
  OutputActivation() = default;
  OutputActivation(const char* op, const Attributes& attributes) {
    const std::string name = attributes.String("activation", "");
    if (name.empty()) return;
    const Form* form = FindForm(name);
    NPU_OP_CHECK(op, form != nullptr, "expected a known activation, got '", name, "'");
    const std::vector<double> numbers = attributes.Floats("activation_params");
    NPU_OP_CHECK(op, numbers.size() == form->numbers, "expected ", form->numbers, " activation_params for ", name,
                 ", got ", numbers.size());
    kind_ = form->kind;
    in_place_ = form->in_place;
    for (size_t i = 0; i < numbers.size(); ++i) numbers_[i] = numbers[i];
  }

  explicit operator bool() const { return kind_ != Kind::kNone; }

  // The same of values in place; null for none, and for those with numbers.
  using RowFunction = void (*)(float* values, int64_t count);
  RowFunction InPlace() const { return in_place_; }

  // y = activation(x + addend), for n elements; a null addend adds nothing. y may be x.
  template <class T>
  void Apply(const T* x, const T* addend, T* y, int64_t n) const {
    if constexpr (kIsHalf<T>) {
      InBlock<T> in, more;
      OutBlock<T> out;
      ForEachBlock(n, [&](int64_t begin, int64_t count) {
        ApplyToRow(in.Load(x + begin, count), addend == nullptr ? nullptr : more.Load(addend + begin, count),
                   out.Values(y + begin), count);
        out.Commit(y + begin, count);
      });
    } else {
      ApplyToRow(x, addend, y, n);
    }
  }

  // use(f), where f computes one value of C: a loop over it vectorises.
  template <class C, class Use>
  void WithFormula(const Use& use) const {
    const C a = static_cast<C>(numbers_[0]), b = static_cast<C>(numbers_[1]);
    // The operators' own formulas, so that NaN and infinities fare as without the fusion.
    switch (kind_) {
      case Kind::kNone:
        return use([](C v) { return v; });
      case Kind::kRelu:
        return use([](C v) { return v < 0 ? C{0} : v; });
      case Kind::kLeakyRelu:
        return use([a](C v) { return v < 0 ? a * v : v; });
      case Kind::kClip:
        return use([a, b](C v) { return Clamped(v, a, b); });
      case Kind::kSigmoid:
        return use([](C v) { return real::Sigmoid(v); });
      case Kind::kTanh:
        return use([](C v) { return real::Tanh(v); });
      case Kind::kHardSigmoid:
        return use([a, b](C v) { return Clamped(a * v + b, C{0}, C{1}); });
      case Kind::kHardSwish:
        return use([](C v) { return v * Clamped(v + 3, C{0}, C{6}) / 6; });
      case Kind::kSilu:
        return use([](C v) { return v * real::Sigmoid(v); });
      case Kind::kGelu:
        return use([](C v) { return C{0.5} * v * (1 + real::Erf(v * (std::numbers::sqrt2_v<C> / 2))); });
      case Kind::kGeluTanh:
        return use([](C v) {
          constexpr C kScale = std::numbers::sqrt2_v<C> * std::numbers::inv_sqrtpi_v<C>;
          return C{0.5} * v * (1 + real::Tanh(kScale * (v + static_cast<C>(0.044715) * v * v * v)));
        });
    }
  }

  // The attributes that the operator's definition lists.
  static std::vector<AttrDef> Definitions() {
    return {StringAttribute("activation", ""), FloatsAttribute("activation_params")};
  }
  static std::string WhyUnsupported(const Attributes& attributes) {
    const std::string name = attributes.String("activation", "");
    const Form* form = FindForm(name);
    if (name.empty()) return "";
    if (form == nullptr) return "activation '" + name + "' is not implemented";
    const size_t given = attributes.Floats("activation_params").size();
    return given == form->numbers ? "" : "activation '" + name + "' with another number of activation_params";
  }

 private:
  enum class Kind {
    kNone,
    kRelu,
    kLeakyRelu,
    kClip,
    kSigmoid,
    kTanh,
    kHardSigmoid,
    kHardSwish,
    kSilu,
    kGelu,
    kGeluTanh
  };
  struct Form {
    std::string_view name;
    Kind kind;
    size_t numbers;
    RowFunction in_place = nullptr;
  };
  static const Form* FindForm(std::string_view name) {
    static constexpr std::array<Form, 10> kForms{{
        {"Relu", Kind::kRelu, 0, &InPlaceOf<Kind::kRelu>},
        {"LeakyRelu", Kind::kLeakyRelu, 1},  // alpha
        {"Clip", Kind::kClip, 2},            // min, max
        {"Sigmoid", Kind::kSigmoid, 0, &InPlaceOf<Kind::kSigmoid>},
        {"Tanh", Kind::kTanh, 0, &InPlaceOf<Kind::kTanh>},
        {"HardSigmoid", Kind::kHardSigmoid, 2},  // alpha, beta
        {"HardSwish", Kind::kHardSwish, 0, &InPlaceOf<Kind::kHardSwish>},
        {"Silu", Kind::kSilu, 0, &InPlaceOf<Kind::kSilu>},  // x * sigmoid(x)
        {"Gelu", Kind::kGelu, 0, &InPlaceOf<Kind::kGelu>},
        {"GeluTanh", Kind::kGeluTanh, 0, &InPlaceOf<Kind::kGeluTanh>},
    }};
    for (const Form& form : kForms)
      if (form.name == name) return &form;
    return nullptr;
  }

  template <Kind kKind>
  static void InPlaceOf(float* values, int64_t count) {
    OutputActivation activation;
    activation.kind_ = kKind;
    activation.Apply<float>(values, nullptr, values, count);
  }

  template <class C>
  void ApplyToRow(const C* x, const C* addend, C* y, int64_t n) const {
    WithFormula<C>([&](const auto& f) { Each(x, addend, y, n, f); });
  }

  // Where low > high, high wins, as in Clip.
  template <class C>
  static C Clamped(C x, C low, C high) {
    const C v = x < low ? low : x;
    return v > high ? high : v;
  }

  template <class C, class F>
  static void Each(const C* x, const C* addend, C* y, int64_t n, const F& f) {
    if (addend == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = f(x[i] + addend[i]);
    }
  }

  Kind kind_ = Kind::kNone;
  RowFunction in_place_ = nullptr;
  std::array<double, 2> numbers_{};
};

}  // namespace npu
