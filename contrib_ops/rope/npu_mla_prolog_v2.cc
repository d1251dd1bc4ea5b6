// npu_mla_prolog_v2(token_x, ...) -> query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope. The semantics are in
// npu_mla_prolog_v2.py.
#include "contrib_ops/rope/npu_mla_prolog_v2.h"

#include "ep/kernels/mla/prolog.h"

namespace npu {
namespace {

// Both versions have the same inputs, at the indices that MlaProlog expects.
using In = nodes::NPUMlaPrologV2::In;
static_assert(In::token_x == MlaProlog::kTokenX && In::kv_cache == MlaProlog::kKvCache &&
              In::smooth_scales_cq == MlaProlog::kSmoothCq);

class MlaPrologV2Kernel final : public MlaProlog {
 public:
  explicit MlaPrologV2Kernel(const KernelInfo& info) : MlaProlog(info, "npu_mla_prolog_v2", true) {}
};

NPU_KERNEL(NPUMlaPrologV2, MlaPrologV2Kernel);

}  // namespace
}  // namespace npu
