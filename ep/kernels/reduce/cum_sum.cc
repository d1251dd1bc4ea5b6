#include "ep/kernels/reduce/cumulative.h"

namespace npu {
namespace {

struct CumSum {
  static constexpr const char* kOp = "CumSum";
  static constexpr int kIdentity = 0;
  template <class A>
  A operator()(A a, A b) const {
    return a + b;
  }
};

NPU_ONNX_KERNEL(CumulativeDef<CumSum>(11, 14));

}  // namespace
}  // namespace npu
