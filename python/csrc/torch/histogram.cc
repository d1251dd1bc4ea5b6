// Counts of values by range, as routers of experts use them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

at::Tensor Histc(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  TORCH_CHECK(bins > 0, "torch.histc: expected more than 0 bins, got ", bins);
  const double low = min.toDouble(), high = max.toDouble();
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high, "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min, got ", low, " and ", high);
  KernelCall call("Histogram", "npu.aten");
  if (!call.Takes(0, self.scalar_type())) return FallBack<at::_ops::histc>(self, bins, min, max);
  return call.In(Dense(self)).HostScalar(bins).HostScalar(low).HostScalar(high).One();
}

// How often each number from 0 on occurs, or the sum of its weights. The max determines the result's size, so the host
// waits for it.
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
