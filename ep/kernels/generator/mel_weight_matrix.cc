// MelWeightMatrix (ai.onnx 17): a triangle over the bins of a spectrogram for each band of the mel scale, computed in
// double. The corners are whole bins.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ep/kernels/generator/output_datatype.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "MelWeightMatrix";

double ReadHostFloat(const char* name, const TensorView& view) {
  NPU_OP_CHECK(kOp, view.elements() == 1, "expected ", name, " to be one value, got shape ", view.shape);
  return DispatchTypes(kOp, view.dtype, FloatTypes{},
                       [&](auto type) { return static_cast<double>(Upcast(*view.as<const decltype(type)>())); });
}

struct Bands {
  int64_t count, dft_length, rate;
  double low, high;  // in hertz

  int64_t bins() const { return dft_length / 2 + 1; }

  // The bins that begin, peak and end the triangles: those of band i are i, i + 1 and i + 2.
  std::vector<int64_t> Corners() const {
    constexpr double kMel = 2595 / std::numbers::ln10;
    const double first = kMel * std::log1p(low / 700),
                 step = (kMel * std::log1p(high / 700) - first) / static_cast<double>(count + 2);
    std::vector<int64_t> corners;
    for (int64_t i = 0; i < count + 2; ++i) {
      const double hertz = 700 * std::expm1((first + static_cast<double>(i) * step) / kMel);
      const double bin = std::floor(static_cast<double>(dft_length + 1) * hertz / static_cast<double>(rate));
      NPU_OP_CHECK(kOp, bin >= 0 && bin < static_cast<double>(bins()),
                   "expected edges from 0 to half of the sample rate ", rate, ", got ", low, " and ", high);
      corners.push_back(static_cast<int64_t>(bin));
    }
    return corners;
  }

  // y is [bins, count] of zeros.
  template <class T>
  void Write(T* y) const {
    const std::vector<int64_t> corners = Corners();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t* corner = corners.data() + i;
      const double rise = static_cast<double>(corner[1] - corner[0]), fall = static_cast<double>(corner[2] - corner[1]);
      for (int64_t j = corner[0]; j < corner[1]; ++j)
        y[j * count + i] = Generated<T>(static_cast<double>(j - corner[0]) / rise);
      y[corner[1] * count + i] = Generated<T>(1);
      for (int64_t j = corner[1] + 1; j < corner[2]; ++j)
        y[j * count + i] = Generated<T>(static_cast<double>(corner[2] - j) / fall);
    }
  }
};

class MelWeightMatrixKernel final : public Kernel {
 public:
  explicit MelWeightMatrixKernel(const KernelInfo& info) : dtype_(ReadOutputDatatype(info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const Bands bands{ReadHostInt(kOp, "num_mel_bins", ctx.Input(0)), ReadHostInt(kOp, "dft_length", ctx.Input(1)),
                      ReadHostInt(kOp, "sample_rate", ctx.Input(2)), ReadHostFloat("lower_edge_hertz", ctx.Input(3)),
                      ReadHostFloat("upper_edge_hertz", ctx.Input(4))};
    NPU_OP_CHECK(kOp, bands.count >= 0 && bands.dft_length >= 1 && bands.rate >= 1,
                 "expected num_mel_bins of 0 or more, and a dft_length and a sample_rate of 1 or more, got ",
                 bands.count, ", ", bands.dft_length, " and ", bands.rate);
    NPU_OP_CHECK(kOp, bands.low >= 0 && bands.low <= bands.high,
                 "expected edges of 0 or more, the lower one first, got ", bands.low, " and ", bands.high);
    const TensorView y = ctx.Output(0, dtype_, {bands.bins(), bands.count});
    if (y.elements() == 0) return;
    DispatchTypes(kOp, dtype_, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [bands, n = y.elements(), to = y.as<T>()] {
        std::fill_n(to, n, Generated<T>(0));
        bands.Write(to);
      });
    });
  }

 private:
  DType dtype_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 17,
    .until = 17,
    .inputs = {HostInput("num_mel_bins", kIndices), HostInput("dft_length", kIndices),
               HostInput("sample_rate", kIndices), HostInput("lower_edge_hertz", kAllFloats),
               HostInput("upper_edge_hertz", kAllFloats)},
    .outputs = {Output("output", kNumeric)},
    .attributes = {OutputDatatype()},
    .make = MakeKernel<MelWeightMatrixKernel>,
    .unsupported = WhyNotOutputDatatype,
});

}  // namespace
}  // namespace npu
