// DFT (ai.onnx 17 to 20) along one axis, computed in double: of real or complex signals, which are cut or padded with
// zeros to dft_length; onesided gives half of the spectrum of a real signal or, inverse, the real signal of such a
// half.
#include <algorithm>
#include <utility>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/signal/fft.h"

namespace npu {
namespace {

using signal::Complex;
using signal::Fft;

constexpr const char* kOp = "DFT";

template <class T>
struct Task {
  const T* x;  // [outer, given, inner, parts]
  T* y;        // [outer, kept, inner, parts_out]
  int64_t length, outer, given, kept, inner, parts, parts_out;
  bool inverse, onesided;

  void Run() const {
    const double sign = inverse ? -1 : 1, scale = inverse ? 1 / static_cast<double>(length) : 1;
    signal::TransformAll(
        Fft(length), outer * inner, [&](int64_t i, Complex* values) { Load(i, sign, values); },
        [&](int64_t i, const Complex* values) {
          T* to = y + (i / inner * kept * inner + i % inner) * parts_out;
          for (int64_t k = 0; k < kept; ++k, to += inner * parts_out) {
            to[0] = Rounded<T>(static_cast<ComputeType<T>>(values[k].re * scale));
            if (parts_out == 2) to[1] = Rounded<T>(static_cast<ComputeType<T>>(values[k].im * sign * scale));
          }
        });
  }

 private:
  void Load(int64_t i, double sign, Complex* values) const {
    const bool half = inverse && onesided;
    const int64_t count = std::min(given, half ? length / 2 + 1 : length);
    const T* from = x + (i / inner * given * inner + i % inner) * parts;
    std::fill_n(values, length, Complex{0, 0});
    for (int64_t n = 0; n < count; ++n, from += inner * parts) {
      values[n] = {static_cast<double>(Upcast(from[0])), parts == 2 ? sign * Upcast(from[1]) : 0.0};
      if (half && n > 0 && n < length - n) values[length - n] = signal::Conjugate(values[n]);
    }
  }
};

class DftKernel final : public Kernel {
 public:
  explicit DftKernel(const KernelInfo& info)
      : inverse_(info.attributes.Bool("inverse")),
        onesided_(info.attributes.Bool("onesided")),
        axis_(info.attributes.Int("axis", -2)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), stated = ctx.Input(1), given_axis = ctx.Input(2);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, rank >= 2 && (x.shape.back() == 1 || x.shape.back() == 2),
                 "expected an input [..., 1] of real or [..., 2] of complex numbers, got shape ", x.shape);
    const int axis = NormalizeAxis(kOp, given_axis ? ReadHostInt(kOp, "axis", given_axis) : axis_, rank);
    NPU_OP_CHECK(kOp, axis < rank - 1, "expected another axis than the last, which has the parts of the numbers");
    const int64_t parts = x.shape.back(), given = x.shape[axis];
    NPU_OP_CHECK(kOp, !onesided_ || parts == (inverse_ ? 2 : 1), "expected ",
                 inverse_ ? "complex numbers for a onesided inverse" : "real numbers for a onesided transform",
                 ", got shape ", x.shape);
    const int64_t whole = inverse_ && onesided_ ? 2 * (given - 1) : given;
    const int64_t length =
        signal::CheckedLength(kOp, "dft_length", stated ? ReadHostInt(kOp, "dft_length", stated) : whole);
    Shape shape = x.shape;
    shape[axis] = onesided_ && !inverse_ ? length / 2 + 1 : length;
    shape[rank - 1] = onesided_ && inverse_ ? 1 : 2;
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const Task<T> task{x.as<const T>(),
                         y.as<T>(),
                         length,
                         x.shape.Elements(0, axis),
                         given,
                         shape[axis],
                         x.shape.Elements(axis + 1, rank - 1),
                         parts,
                         shape.back(),
                         inverse_,
                         onesided_};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  bool inverse_, onesided_;
  int64_t axis_;  // of version 17
};

OpDef Definition(int version) {
  OpDef def{
      .type = kOp,
      .since = version,
      .until = version,
      .inputs = {Input("input", kAllFloats), OptionalHostInput("dft_length", kIndices)},
      .outputs = {Output("output", kAllFloats)},
      .attributes = {IntAttribute("inverse", 0), IntAttribute("onesided", 0)},
      .make = MakeKernel<DftKernel>,
  };
  if (version == 17) {
    def.attributes.push_back(IntAttribute("axis", 1));
  } else {
    def.inputs.push_back(OptionalHostInput("axis", kInt64));
  }
  return def;
}

NPU_ONNX_KERNEL(Definition(17));
NPU_ONNX_KERNEL(Definition(20));

}  // namespace
}  // namespace npu
