// npu_rotary_mul(self, r1, r2, rotate?; rotary_mode) -> y. The semantics are in npu_rotary_mul.py.
#include "contrib_ops/rope/npu_rotary_mul.h"

#include <algorithm>

#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/rotate_row.h"
#include "ep/kernels/rotary/table_rows.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPURotaryMul::In;
using Out = nodes::NPURotaryMul::Out;

constexpr const char* kOp = "npu_rotary_mul";

// y = x * cos + (x @ matrix) * sin for one row; `product` is scratch. y may be x.
void RotateByMatrix(const float* x, const float* matrix, const float* cos, const float* sin, float* product, float* y,
                    int64_t d) {
  std::fill_n(product, d, 0.0f);
  for (int64_t k = 0; k < d; ++k) {
    const float* row = matrix + k * d;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) product[i] += x[k] * row[i];
  }
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) y[i] = x[i] * cos[i] + product[i] * sin[i];
}

enum class Rotation { kHalf, kInterleave, kMatrix };

struct Operands {
  const void *x, *cos, *sin;
  const float* matrix;
  void* y;
  Shape shape, cos_shape, sin_shape;
};

template <Rotation kRotation, class X, class Table>
void Rotate(const Operands& o, int64_t begin, int64_t end) {
  const int64_t d = o.shape.back();
  TableRows<Table> cos(static_cast<const Table*>(o.cos), o.cos_shape, o.shape);
  TableRows<Table> sin(static_cast<const Table*>(o.sin), o.sin_shape, o.shape);
  cos.Seek(begin);
  sin.Seek(begin);
  // Several 16-bit rows are converted at a time: a single head is too short to amortise the conversion.
  const int64_t group = std::max<int64_t>(1, kRowBlock / d);
  RowScratch wide(group * d), product(kRotation == Rotation::kMatrix ? d : 0);
  for (int64_t row = begin; row < end; row += group) {
    const int64_t rows = std::min(group, end - row);
    const X* source = static_cast<const X*>(o.x) + row * d;
    X* destination = static_cast<X*>(o.y) + row * d;
    const float* x;
    float* y;
    if constexpr (std::is_same_v<X, float>) {
      x = source;
      y = destination;
    } else {
      ToFloat(source, wide.values(), rows * d);
      x = y = wide.values();
    }
    for (int64_t i = 0; i < rows; ++i) {
      if constexpr (kRotation == Rotation::kMatrix) {
        RotateByMatrix(x + i * d, o.matrix, cos.Row(), sin.Row(), product.values(), y + i * d, d);
      } else {
        constexpr Pairing kPairing = kRotation == Rotation::kHalf ? Pairing::kHalves : Pairing::kNeighbours;
        RotateRow<kPairing, kPairing>(x + i * d, cos.Row(), sin.Row(), y + i * d, d);
      }
      cos.Next();
      sin.Next();
    }
    if constexpr (!std::is_same_v<X, float>) FromFloat(y, destination, rows * d);
  }
}

class RotaryMulKernel final : public Kernel {
 public:
  explicit RotaryMulKernel(const KernelInfo& info) {
    const std::string mode = info.attributes.String("rotary_mode");
    NPU_OP_CHECK(kOp, mode == "half" || mode == "interleave", "The rotary_mode of ", kOp,
                 " should be half or interleave, but got ", mode);
    interleave_ = mode == "interleave";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::self), r1 = ctx.Input(In::r1), r2 = ctx.Input(In::r2),
                     rotate = ctx.Input(In::rotate);
    NPU_OP_CHECK(kOp, x && r1 && r2, "expected the tensors self, r1 and r2");
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1, "expected self of rank >= 1, got a scalar");
    CheckTable("r1", r1, x);
    CheckTable("r2", r2, x);
    NPU_OP_CHECK(kOp, r1.dtype == r2.dtype, "expected r1 and r2 of one dtype, got ", NameOf(r1.dtype), " and ",
                 NameOf(r2.dtype));
    const int64_t d = x.shape.back();
    if (rotate) {
      NPU_OP_CHECK(kOp, rotate.shape == (Shape{d, d}), "expected rotate of shape ", Shape{d, d}, ", got ",
                   rotate.shape);
    } else {
      NPU_OP_CHECK(kOp, d % 2 == 0, "expected an even last dimension of self, got ", x.shape);
    }
    const TensorView y = ctx.Output(Out::y, x.dtype, x.shape);
    if (x.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto x_tag) {
      using X = decltype(x_tag);
      DispatchFloats(kOp, r1.dtype, [&](auto table_tag) {
        using Table = decltype(table_tag);
        if (rotate) {
          Enqueue<Rotation::kMatrix, X, Table>(ctx, x, r1, r2, rotate, y);
        } else if (interleave_) {
          Enqueue<Rotation::kInterleave, X, Table>(ctx, x, r1, r2, rotate, y);
        } else {
          Enqueue<Rotation::kHalf, X, Table>(ctx, x, r1, r2, rotate, y);
        }
      });
    });
  }

 private:
  static void CheckTable(const char* name, const TensorView& table, const TensorView& x) {
    NPU_OP_CHECK(kOp, BroadcastRows::Fits(table.shape, x.shape), "expected ", name, " that broadcasts to self ",
                 x.shape, ", got ", table.shape);
  }

  template <Rotation kRotation, class X, class Table>
  void Enqueue(OpContext& ctx, const TensorView& x, const TensorView& r1, const TensorView& r2,
               const TensorView& rotate, const TensorView& y) const {
    const int64_t d = x.shape.back();
    Operands o{x.data, r1.data, r2.data, nullptr, y.data, x.shape, r1.shape, r2.shape};
    // The work per element grows with d if the rotation is a matrix.
    const int64_t grain = RowGrain(kRotation == Rotation::kMatrix ? d * d : d);
    const int64_t rows = x.shape.Elements(0, x.shape.rank() - 1);
    if (!rotate || rotate.dtype == DType::kFloat32) {
      o.matrix = rotate.as<const float>();
      ctx.Launch(kOp, [o, rows, grain] {
        ParallelFor(rows, grain, [&](int64_t begin, int64_t end) { Rotate<kRotation, X, Table>(o, begin, end); });
      });
      return;
    }
    float* wide = static_cast<float*>(ctx.Workspace(static_cast<size_t>(rotate.elements()) * sizeof(float)));
    o.matrix = wide;
    ctx.Launch(kOp, [o, rows, grain, wide, narrow = rotate.data, dtype = rotate.dtype, n = rotate.elements()] {
      DispatchFloats(kOp, dtype, [&](auto tag) { ToFloat(static_cast<const decltype(tag)*>(narrow), wide, n); });
      ParallelFor(rows, grain, [&](int64_t begin, int64_t end) { Rotate<kRotation, X, Table>(o, begin, end); });
    });
  }

  bool interleave_ = false;
};

NPU_KERNEL(NPURotaryMul, RotaryMulKernel);

}  // namespace
}  // namespace npu
