#include "ep/kernels/recurrent/activation.h"

#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <type_traits>
#include <variant>

#include "ep/kernels/elementwise/real.h"
#include "ep/kernels/op_check.h"

namespace npu::recurrent {
namespace {

// F is a formula of x, alpha and beta, without state.
template <class F, class C>
void Row(C* values, int64_t n, C alpha, C beta) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) values[i] = F{}(values[i], alpha, beta);
}

struct Function {
  const char* name;
  size_t numbers;      // 1: it has an alpha, 2: also a beta
  double alpha, beta;  // the defaults; NaN where ONNX has none
  void (*floats)(float*, int64_t, float, float);
  void (*doubles)(double*, int64_t, double, double);
};

template <class F>
constexpr Function Named(const char* name, F, size_t numbers = 0, double alpha = 0, double beta = 0) {
  return {name, numbers, alpha, beta, &Row<F, float>, &Row<F, double>};
}

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

template <class C>
C PositivePart(C x) {
  return x > 0 || x != x ? x : C{0};
}

constexpr std::array kFunctions = {
    Named("Relu", [](auto x, auto, auto) { return PositivePart(x); }),
    Named("Tanh", [](auto x, auto, auto) { return real::Tanh(x); }),
    Named("Sigmoid", [](auto x, auto, auto) { return real::Sigmoid(x); }),
    Named(
        "Affine", [](auto x, auto alpha, auto beta) { return alpha * x + beta; }, 2, kNone, kNone),
    Named(
        "LeakyRelu", [](auto x, auto alpha, auto) { return x < 0 ? alpha * x : x; }, 1, 0.01),
    Named(
        "ThresholdedRelu", [](auto x, auto alpha, auto) { return x > alpha || x != x ? x : x * 0; }, 1, 1.0),
    Named(
        "ScaledTanh", [](auto x, auto alpha, auto beta) { return alpha * real::Tanh(beta * x); }, 2, kNone, kNone),
    Named(
        "HardSigmoid",
        [](auto x, auto alpha, auto beta) {
          const auto y = PositivePart(alpha * x + beta);
          return y > 1 ? decltype(y){1} : y;
        },
        2, 0.2, 0.5),
    Named(
        "Elu", [](auto x, auto alpha, auto) { return x < 0 ? alpha * real::Expm1(x) : x; }, 1, 1.0),
    Named("Softsign", [](auto x, auto, auto) { return x / (1 + std::fabs(x)); }),
    Named("Softplus", [](auto x, auto, auto) { return PositivePart(x) + real::Log1pExpOfMinusAbs(x); }),
};

// Names are compared without case, as onnxruntime does.
bool SameName(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) != std::tolower(static_cast<unsigned char>(b[i]))) return false;
  }
  return true;
}

size_t Find(const char* op, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < kFunctions.size(); ++i) {
    if (SameName(kFunctions[i].name, name)) return i;
    known += (i == 0 ? "" : ", ") + std::string(kFunctions[i].name);
  }
  Fail(ErrorCode::kInvalidArgument, "[", op, "] expected activations from ", known, ", got ", name);
}

}  // namespace

ActivationList::ActivationList(const char* op, const Attributes& attributes, const std::vector<std::string>& defaults,
                               int64_t directions)
    : each_(defaults.size()) {
  const size_t count = each_ * static_cast<size_t>(directions);
  std::vector<std::string> names;
  const auto given = attributes.values().find("activations");
  if (given != attributes.values().end()) {
    names = std::get<std::vector<std::string>>(given->second);
  } else {
    for (size_t i = 0; i < count; ++i) names.push_back(defaults[i % each_]);
  }
  // One direction may be given the activations of two, as the default of RNN's schema is.
  NPU_OP_CHECK(op, names.size() == count || names.size() == 2 * each_, "expected ", count, " activations, ", each_,
               " for each direction, got ", names.size());
  names.resize(count);
  const std::vector<double> alphas = attributes.Floats("activation_alpha");
  const std::vector<double> betas = attributes.Floats("activation_beta");
  size_t alpha = 0, beta = 0;
  for (const std::string& name : names) {
    const size_t found = Find(op, name);
    const Function& function = kFunctions[found];
    Entry entry{found, function.alpha, function.beta};
    if (function.numbers >= 1 && alpha < alphas.size()) entry.alpha = alphas[alpha++];
    if (function.numbers >= 2 && beta < betas.size()) entry.beta = betas[beta++];
    NPU_OP_CHECK(op, function.numbers < 2 || !(std::isnan(entry.alpha) || std::isnan(entry.beta)),
                 "expected an activation_alpha and an activation_beta for each ", function.name, ", got ",
                 alphas.size(), " and ", betas.size());
    entries_.push_back(entry);
  }
}

template <class C>
Activation<C> ActivationList::Get(int64_t direction, size_t i) const {
  const Entry& entry = entries_[static_cast<size_t>(direction) * each_ + i];
  const Function& function = kFunctions[entry.function];
  if constexpr (std::is_same_v<C, float>) {
    return {function.floats, static_cast<float>(entry.alpha), static_cast<float>(entry.beta)};
  } else {
    return {function.doubles, entry.alpha, entry.beta};
  }
}

template Activation<float> ActivationList::Get<float>(int64_t, size_t) const;
template Activation<double> ActivationList::Get<double>(int64_t, size_t) const;

}  // namespace npu::recurrent
