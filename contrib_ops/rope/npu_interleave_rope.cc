// npu_interleave_rope(x, cos, sin) -> y. The semantics are in npu_interleave_rope.py.
#include "contrib_ops/rope/npu_interleave_rope.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotate_row.h"
#include "ep/kernels/rotary/table_rows.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUInterleaveRope::In;
using Out = nodes::NPUInterleaveRope::Out;

constexpr const char* kOp = "npu_interleave_rope";

template <class T>
struct Operands {
  const T *x, *cos, *sin;
  T* y;
  Shape shape, cos_shape, sin_shape;
};

template <class T>
void Rotate(const Operands<T>& o, int64_t begin, int64_t end) {
  const int64_t d = o.shape.back();
  TableRows<T> cos(o.cos, o.cos_shape, o.shape), sin(o.sin, o.sin_shape, o.shape);
  cos.Seek(begin);
  sin.Seek(begin);
  RowScratch in(d), out(d);
  for (int64_t row = begin; row < end; ++row) {
    ToFloat(o.x + row * d, in.values(), d);
    RotateRow<Pairing::kNeighbours, Pairing::kHalves>(in.values(), cos.Row(), sin.Row(), out.values(), d);
    FromFloat(out.values(), o.y + row * d, d);
    cos.Next();
    sin.Next();
  }
}

class InterleaveRopeKernel final : public Kernel {
 public:
  explicit InterleaveRopeKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), cos = ctx.Input(In::cos), sin = ctx.Input(In::sin);
    NPU_OP_CHECK(kOp, x && cos && sin, "expected the tensors x, cos and sin");
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1 && x.shape.back() % 2 == 0, "expected an even last dimension of x, got ",
                 x.shape);
    for (const auto& [name, table] : {std::pair{"cos", &cos}, std::pair{"sin", &sin}}) {
      NPU_OP_CHECK(kOp, BroadcastRows::Fits(table->shape, x.shape), "expected ", name, " that broadcasts to x ",
                   x.shape, ", got ", table->shape);
      NPU_OP_CHECK(kOp, table->dtype == x.dtype, "expected ", name, " of x's dtype ", NameOf(x.dtype), ", got ",
                   NameOf(table->dtype));
    }
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    if (x.elements() == 0) return;
    const int64_t rows = x.shape.Elements(0, x.shape.rank() - 1);
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Operands<T> o{x.as<T>(), cos.as<T>(), sin.as<T>(), y.as<T>(), x.shape, cos.shape, sin.shape};
      ctx.Launch(kOp, [o, rows] {
        ParallelFor(rows, RowGrain(o.shape.back()), [&](int64_t begin, int64_t end) { Rotate(o, begin, end); });
      });
    });
  }
};

NPU_KERNEL(NPUInterleaveRope, InterleaveRopeKernel);

}  // namespace
}  // namespace npu
