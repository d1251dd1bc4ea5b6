// npu_mla_prolog(token_x, ...) -> query, query_rope, kv_cache, kr_cache. The semantics are in
// npu_mla_prolog_v2.py.
#include "ep/kernels/mla/prolog.h"

namespace npu {
namespace {

class MlaPrologV1Kernel final : public MlaProlog {
 public:
  explicit MlaPrologV1Kernel(const KernelInfo& info) : MlaProlog(info, "npu_mla_prolog", false) {}
};

NPU_KERNEL(NPUMlaProlog, MlaPrologV1Kernel);

}  // namespace
}  // namespace npu
