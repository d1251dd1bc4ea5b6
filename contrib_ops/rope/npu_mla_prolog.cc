// npu_mla_prolog(token_x, ...) -> query, query_rope, kv_cache, kr_cache. The semantics are in
// npu_mla_prolog_v2.py.
#include "contrib_ops/rope/npu_mla_prolog.h"

#include "ep/kernels/mla/prolog.h"

namespace npu {
namespace {

// Both versions have the same inputs, at the indices that MlaProlog expects.
using In = nodes::NPUMlaProlog::In;
static_assert(In::token_x == MlaProlog::kTokenX && In::kv_cache == MlaProlog::kKvCache &&
              In::smooth_scales_cq == MlaProlog::kSmoothCq);

class MlaPrologV1Kernel final : public MlaProlog {
 public:
  explicit MlaPrologV1Kernel(const KernelInfo& info) : MlaProlog(info, "npu_mla_prolog", false) {}
};

NPU_KERNEL(NPUMlaProlog, MlaPrologV1Kernel);

}  // namespace
}  // namespace npu
