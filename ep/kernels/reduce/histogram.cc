// torch's histc: the number of elements in each of several equal ranges between two bounds.
#include <algorithm>
#include <cmath>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

struct Range {
  double low, high;
};

// For equal bounds: the extremes of the elements, or, if these are equal too, 1 below and 1 above.
template <class T>
Range Widen(Range range, const T* x, int64_t n) {
  if (range.low == range.high && n > 0) {
    bool finite = true;
    range.low = range.high = static_cast<double>(Upcast(x[0]));
    for (int64_t i = 0; i < n; ++i) {
      const auto e = static_cast<double>(Upcast(x[i]));
      finite &= std::isfinite(e);
      range = {std::min(range.low, e), std::max(range.high, e)};
    }
    NPU_CHECK(finite, "[histc] expected finite numbers where no range is given");
  }
  if (range.low == range.high) range = {range.low - 1, range.high + 1};
  return range;
}

template <class T>
void Count(const Range& given, const T* x, int64_t n, int64_t* counts, T* to, int64_t bins) {
  const auto [low, high] = Widen(given, x, n);
  std::fill_n(counts, bins, int64_t{0});
  for (int64_t i = 0; i < n; ++i) {
    const auto e = static_cast<double>(Upcast(x[i]));
    if (!(e >= low && e <= high)) continue;
    // Also in the last bin if the multiplication overflows or the bounds are too close to tell apart.
    const double position = (e - low) * static_cast<double>(bins) / (high - low);
    ++counts[position < static_cast<double>(bins) ? static_cast<int64_t>(position) : bins - 1];
  }
  for (int64_t i = 0; i < bins; ++i) to[i] = Rounded<T>(static_cast<ComputeType<T>>(counts[i]));
}

double ReadHostDouble(const char* name, const TensorView& view) {
  NPU_CHECK(view && view.dtype == DType::kFloat64 && view.elements() == 1, "[histc] expected ", name,
            " to be one float64");
  return *view.as<double>();
}

class HistogramKernel : public Kernel {
 public:
  explicit HistogramKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const int64_t bins = ReadHostInt("histc", "bins", ctx.Input(1));
    const Range range{ReadHostDouble("min", ctx.Input(2)), ReadHostDouble("max", ctx.Input(3))};
    NPU_CHECK(bins > 0, "[histc] expected more than 0 bins, got ", bins);
    NPU_CHECK(std::isfinite(range.low) && std::isfinite(range.high) && range.low <= range.high,
              "[histc] expected a finite range from min to max, got ", range.low, " to ", range.high);
    const TensorView y = ctx.Output(0, x.dtype, {bins});
    auto* counts = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, bins)));
    DispatchTypes("histc", x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch("histc", [range, from = x.as<const T>(), n = x.elements(), counts, to = y.as<T>(), bins] {
        Count(range, from, n, counts, to, bins);
      });
    });
  }
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "Histogram",
    .inputs = {Input("x", kNumeric), HostInput("bins", kInt64), HostInput("min", kFloat64), HostInput("max", kFloat64)},
    .outputs = {Output("counts", kNumeric)},
    .make = MakeKernel<HistogramKernel>,
});

}  // namespace
}  // namespace npu
