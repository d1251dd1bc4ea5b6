// Counts of numbers by range, as routers of experts ask for.
#include <ATen/core/Tensor.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/runtime/error.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// `counts` of the bins between `low` and `high`; where these are equal, between the extremes of the elements.
template <class T>
void CountBins(const T* from, int64_t n, double low, double high, T* to, int64_t bins) {
  if (low == high && n > 0) {
    const auto [least, greatest] = std::minmax_element(from, from + n);
    low = static_cast<double>(*least);
    high = static_cast<double>(*greatest);
    NPU_CHECK(std::isfinite(low) && std::isfinite(high), "[histc] expected finite numbers where no range is given");
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(from[i]);
    if (!(x >= low && x <= high)) continue;
    const auto bin = static_cast<int64_t>((x - low) * static_cast<double>(bins) / (high - low));
    ++counts[static_cast<size_t>(std::min(bin, bins - 1))];
  }
  std::transform(counts.begin(), counts.end(), to, [](int64_t c) { return static_cast<T>(c); });
}

at::Tensor Histc(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  TORCH_CHECK(bins > 0, "torch.histc: expected more than 0 bins, got ", bins);
  const double low = min.toDouble(), high = max.toDouble();
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high, "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min, got ", low, " and ", high);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::histc>(self, bins, min, max);
  const at::Tensor x = Dense(self);
  const at::Tensor counts = Empty({bins}, self.scalar_type(), self);
  DispatchNumbers(self.scalar_type(), [&]<class T>(T) {
    StreamOf(self).Launch(
        "histc", [from = static_cast<const T*>(x.const_data_ptr()), n = x.numel(), low, high,
                  to = static_cast<T*>(counts.mutable_data_ptr()), bins] { CountBins(from, n, low, high, to, bins); });
  });
  return counts;
}

// How often each number from 0 on occurs, or the sum of its weights. The greatest number is the result's size, so the
// host waits for it.
at::Tensor Bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t least) {
  TORCH_CHECK(at::isIntegralType(self.scalar_type(), /*includeBool=*/false), "bincount expected integers, got ",
              self.scalar_type());
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  const bool weighted = Has(weights);
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || weights->sizes() == self.sizes(), "weights should be 1-d and have the same length as input");
  const bool any = self.numel() > 0;
  TORCH_CHECK(!any || self.min().item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t top = any ? self.max().item<int64_t>() : -1;
  TORCH_CHECK(top < std::numeric_limits<int64_t>::max(), "bincount expected numbers below ", top);
  const at::ScalarType dtype = !weighted || !any                      ? at::kLong
                               : weights->scalar_type() == at::kFloat ? at::kFloat
                                                                      : at::kDouble;
  const at::Tensor counts = Empty({std::max(least, top + 1)}, dtype, self).zero_();
  if (any) counts.index_add_(0, self.to(at::kLong), weighted ? weights->to(dtype) : at::ones_like(self, dtype));
  return counts;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("histc", &Histc);
  m.impl("bincount", &Bincount);
}

}  // namespace
}  // namespace npu::aten
