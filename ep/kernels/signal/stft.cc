// STFT (ai.onnx 17): the Fourier transforms of frames of a signal, each times a window, computed in double.
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/signal/fft.h"

namespace npu {
namespace {

using signal::Complex;
using signal::Fft;

constexpr const char* kOp = "STFT";

template <class T>
struct Task {
  const T* x;       // [batch, length, parts]
  const T* window;  // [frame]; null: ones
  T* y;             // [batch, frames, bins, 2]
  int64_t batch, length, parts, frame, step, frames, bins;

  void Run() const {
    signal::TransformAll(
        Fft(frame), batch * frames, [this](int64_t i, Complex* values) { Load(i, values); },
        [this](int64_t i, const Complex* values) {
          T* to = y + i * bins * 2;
          for (int64_t k = 0; k < bins; ++k) {
            to[2 * k] = Rounded<T>(static_cast<ComputeType<T>>(values[k].re));
            to[2 * k + 1] = Rounded<T>(static_cast<ComputeType<T>>(values[k].im));
          }
        });
  }

 private:
  void Load(int64_t i, Complex* values) const {
    const T* from = x + (i / frames * length + i % frames * step) * parts;
    for (int64_t n = 0; n < frame; ++n, from += parts) {
      const double weight = window == nullptr ? 1.0 : static_cast<double>(Upcast(window[n]));
      values[n] = {weight * Upcast(from[0]), parts == 2 ? weight * Upcast(from[1]) : 0.0};
    }
  }
};

class StftKernel final : public Kernel {
 public:
  explicit StftKernel(const KernelInfo& info) : onesided_(info.attributes.Bool("onesided")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), window = ctx.Input(2), stated = ctx.Input(3);
    const Shape& s = x.shape;
    NPU_OP_CHECK(kOp, s.rank() == 3 && (s[2] == 1 || s[2] == 2),
                 "expected a signal [N, length, 1] of real or [N, length, 2] of complex numbers, got shape ", s);
    NPU_OP_CHECK(kOp, !onesided_ || s[2] == 1, "expected real numbers for a onesided transform, got shape ", s);
    NPU_OP_CHECK(kOp, !window || (window.shape.rank() == 1 && window.dtype == x.dtype),
                 "expected a window of one dimension and ", NameOf(x.dtype), ", got ", NameOf(window.dtype), " ",
                 window.shape);
    const int64_t step = ReadHostInt(kOp, "frame_step", ctx.Input(1));
    NPU_OP_CHECK(kOp, step > 0, "expected a frame_step of 1 or more, got ", step);
    const int64_t frame = signal::CheckedLength(kOp, "frame_length",
                                                stated   ? ReadHostInt(kOp, "frame_length", stated)
                                                : window ? window.shape[0]
                                                         : s[1]);
    NPU_OP_CHECK(kOp, frame <= s[1] && (!window || window.shape[0] == frame),
                 "expected a frame_length that is the window's and not longer than the signal of ", s[1], ", got ",
                 frame, " for a window of shape ", window.shape);
    const int64_t frames = (s[1] - frame) / step + 1, bins = onesided_ ? frame / 2 + 1 : frame;
    const TensorView y = ctx.Output(0, x.dtype, {s[0], frames, bins, 2});
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const Task<T> task{x.as<const T>(), window.as<const T>(), y.as<T>(), s[0], s[1], s[2], frame, step, frames, bins};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  bool onesided_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 17,
    .until = 17,
    .inputs = {Input("signal", kAllFloats), HostInput("frame_step", kIndices), OptionalInput("window", kAllFloats),
               OptionalHostInput("frame_length", kIndices)},
    .outputs = {Output("output", kAllFloats)},
    .attributes = {IntAttribute("onesided", 1)},
    .make = MakeKernel<StftKernel>,
});

}  // namespace
}  // namespace npu
