// npu_prefetch(self, dependency?; max_size, offset). The semantics are in npu_prefetch.py.
#include "contrib_ops/memory/npu_prefetch.h"

#include <algorithm>

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUPrefetch::In;

constexpr const char* kOp = "npu_prefetch";
constexpr int64_t kCacheLine = 64;
// The size of a typical L2 cache: prefetching more would evict what was prefetched first.
constexpr int64_t kMostBytes = int64_t{1} << 20;

class PrefetchKernel final : public Kernel {
 public:
  explicit PrefetchKernel(const KernelInfo& info)
      : max_size_(info.attributes.Int("max_size")), offset_(info.attributes.Int("offset")) {
    NPU_OP_CHECK(kOp, max_size_ > 0, "The max_size should be greater than zero, but got ", max_size_, ".");
    NPU_OP_CHECK(kOp, offset_ >= 0, "The offset should be nonnegative, but got ", offset_, ".");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self);
    NPU_OP_CHECK(kOp, x, "expected the tensor self");
    const int64_t bytes = static_cast<int64_t>(x.bytes());
    NPU_OP_CHECK(kOp, offset_ <= bytes, "expected offset within the ", bytes, " bytes of self, got ", offset_);
    const int64_t end = offset_ + std::min({max_size_, bytes - offset_, kMostBytes});
    if (end == offset_) return;
    ctx.Launch(kOp, [data = x.as<const char>(), begin = offset_, end] {
      for (int64_t at = begin; at < end; at += kCacheLine) __builtin_prefetch(data + at);
    });
  }

 private:
  int64_t max_size_, offset_;
};

NPU_KERNEL(NPUPrefetch, PrefetchKernel);

}  // namespace
}  // namespace npu
