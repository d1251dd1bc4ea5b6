// HannWindow, HammingWindow and BlackmanWindow (ai.onnx 17): sums of cosines, computed in double.
#include <cmath>
#include <numbers>

#include "ep/kernels/generator/output_datatype.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

// a - b cos(x) + c cos(2x)
struct Hann {
  static constexpr const char* kOp = "HannWindow";
  static constexpr double kA = 0.5, kB = 0.5, kC = 0;
};
struct Hamming {
  static constexpr const char* kOp = "HammingWindow";
  static constexpr double kA = 25.0 / 46, kB = 1 - kA, kC = 0;
};
struct Blackman {
  static constexpr const char* kOp = "BlackmanWindow";
  static constexpr double kA = 0.42, kB = 0.5, kC = 0.08;
};

template <class Window>
class WindowKernel final : public Kernel {
 public:
  static constexpr const char* kOp = Window::kOp;

  explicit WindowKernel(const KernelInfo& info)
      : periodic_(info.attributes.Bool("periodic")), dtype_(ReadOutputDatatype(info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const int64_t size = ReadHostInt(kOp, "size", ctx.Input(0));
    NPU_OP_CHECK(kOp, size >= 0, "expected a size of 0 or more, got ", size);
    const TensorView y = ctx.Output(0, dtype_, {size});
    if (size == 0) return;
    DispatchTypes(kOp, dtype_, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [size, periods = periodic_ ? size : size - 1, to = y.as<T>()] {
        ParallelFor(size, kMathGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const double x = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(periods);
            const double value = Window::kA - Window::kB * std::cos(x) + Window::kC * std::cos(2 * x);
            to[i] = Generated<T>(value);
          }
        });
      });
    });
  }

 private:
  bool periodic_;
  DType dtype_;
};

template <class Window>
OpDef Definition() {
  return {
      .type = Window::kOp,
      .since = 17,
      .until = 17,
      .inputs = {HostInput("size", kIndices)},
      .outputs = {Output("output", kNumeric)},
      .attributes = {OutputDatatype(), IntAttribute("periodic", 1)},
      .make = MakeKernel<WindowKernel<Window>>,
      .unsupported = WhyNotOutputDatatype,
  };
}

NPU_ONNX_KERNEL(Definition<Hann>());
NPU_ONNX_KERNEL(Definition<Hamming>());
NPU_ONNX_KERNEL(Definition<Blackman>());

}  // namespace
}  // namespace npu
