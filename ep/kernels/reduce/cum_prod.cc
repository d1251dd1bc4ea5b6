#include "ep/kernels/reduce/cumulative.h"

namespace npu {
namespace {

struct CumProd {
  static constexpr const char* kOp = "CumProd";
  static constexpr int kIdentity = 1;
  template <class A>
  A operator()(A a, A b) const {
    return a * b;
  }
};

NPU_ONNX_KERNEL(CumulativeDef<CumProd>(26, 26));

}  // namespace
}  // namespace npu
