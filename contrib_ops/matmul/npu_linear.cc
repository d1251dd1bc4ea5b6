// npu_linear(input, weight, bias?) -> y. The semantics are in npu_linear.py.
#include "contrib_ops/matmul/npu_linear.h"

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using In = nodes::NPULinear::In;
using Out = nodes::NPULinear::Out;

constexpr const char* kOp = "npu_linear";

// torch's weight [N, K], viewed as B [K, N].
gemm::Matrix WeightMatrix(const TensorView& weight) {
  return gemm::Matrix::RowMajor(weight.data, weight.shape[0], weight.shape[1]).Transposed();
}

class LinearKernel final : public Kernel, public SharedMatrixReader {
 public:
  explicit LinearKernel(const KernelInfo& info) : packed_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1 || !gemm::Supports(constant.dtype) || constant.shape.rank() != 2) return false;
    packed_.Pack(kOp, constant.dtype, WeightMatrix(constant), stream);
    packed_view_ = constant;
    packed_view_.data = nullptr;
    return true;
  }

  Panels PanelsOf(size_t input, const TensorView& weight) const override {
    return input == 1 ? packed_.PanelsOf(weight) : Panels::kNo;
  }
  void UsePanels(size_t, const TensorView& weight, bool reorder, Stream& stream) override {
    packed_.UsePanels(kOp, weight, reorder, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), weight = packed_ ? packed_view_ : ctx.Input(In::weight),
                     bias = ctx.Input(In::bias);
    NPU_OP_CHECK(kOp, x && weight, "expected the tensors input and weight");
    NPU_OP_CHECK(kOp, x.shape.rank() >= 1 && weight.shape.rank() == 2 && x.shape.back() == weight.shape[1],
                 "expected input [.., K] and weight [N, K], got ", x.shape, " and ", weight.shape);
    NPU_OP_CHECK(kOp, x.dtype == weight.dtype, "expected a weight of input's dtype ", NameOf(x.dtype), ", got ",
                 NameOf(weight.dtype));
    if (bias) CheckBias(bias, x.dtype, weight.shape[0]);

    Shape shape = x.shape;
    shape[shape.rank() - 1] = weight.shape[0];
    const TensorView y = ctx.Output(Out::y, x.dtype, shape);
    if (!y || y.elements() == 0) return;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(x.data, x.shape.Elements(0, x.shape.rank() - 1), x.shape.back());
    const gemm::Matrix b = WeightMatrix(weight);
    if (gemm::Supports(x.dtype)) {
      const gemm::Epilogue epilogue{.addend = {bias.data, bias.dtype, 0, 1}};
      const gemm::Result result{y.data, y.dtype, b.columns};
      ctx.Launch(kOp, [this, rows, b, result, epilogue] {
        if (packed_.has_panels()) {
          gemm::Multiply(rows, packed_.matrix(b), result, epilogue);
        } else {
          gemm::Multiply(result.dtype, rows, b, result, epilogue);
        }
      });
    } else if (x.dtype == DType::kInt32) {
      LaunchIntegers<int32_t>(ctx, rows, b, bias, y);
    } else {
      LaunchIntegers<int8_t>(ctx, rows, b, bias, y);
    }
  }

 private:
  static void CheckBias(const TensorView& bias, DType dtype, int64_t n) {
    NPU_OP_CHECK(kOp, bias.shape == Shape{n}, "expected a bias of shape [", n, "], got ", bias.shape);
    const DType sum = IsFloating(dtype) ? DType::kFloat32 : DType::kInt32;
    NPU_OP_CHECK(kOp, bias.dtype == sum || (IsFloating(dtype) && bias.dtype == dtype), "expected a bias of dtype ",
                 NameOf(sum), IsFloating(dtype) && dtype != sum ? Concat(" or ", NameOf(dtype)) : "", ", got ",
                 NameOf(bias.dtype));
  }

  // Accumulates in int32; both the sums and the conversion to T wrap.
  template <class T>
  static void LaunchIntegers(OpContext& ctx, const gemm::Matrix& rows, const gemm::Matrix& b, const TensorView& bias,
                             const TensorView& y) {
    int32_t* sums = static_cast<int32_t*>(std::is_same_v<T, int32_t> ? y.data : ctx.Workspace(y.elements() * 4));
    ctx.Launch(kOp, [rows, b, y, sums, bias = bias.as<int32_t>()] {
      PlainProduct<T>(rows, b, sums);
      const int64_t n = b.columns;
      ParallelFor(rows.rows, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * n; i < end * n; ++i) {
          const uint32_t sum = static_cast<uint32_t>(sums[i]) + (bias ? static_cast<uint32_t>(bias[i % n]) : 0u);
          y.as<T>()[i] = static_cast<T>(sum);
        }
      });
    });
  }

  gemm::PackedWeight packed_;
  TensorView packed_view_;  // type and shape
};

NPU_KERNEL(NPULinear, LinearKernel);

}  // namespace
}  // namespace npu
