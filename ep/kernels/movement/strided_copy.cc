#include "ep/kernels/movement/strided_copy.h"

#include "ep/runtime/strided_copy_loops.h"

namespace npu {

void LaunchStridedCopy(OpContext& ctx, const char* op, const Shape& shape,
                       const std::array<int64_t, Shape::kMaxRank>& strides, size_t size, void* to, const void* from) {
  strided::Launch(ctx.stream(), op, MakeStridedPair(shape, strides), size, to, from);
}

}  // namespace npu
