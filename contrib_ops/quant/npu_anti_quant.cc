// npu_anti_quant(x, scale, offset; dst_dtype, src_dtype) -> y. The semantics are in npu_anti_quant.py.
#include "contrib_ops/quant/npu_anti_quant.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/int4.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUAntiQuant::In;
using Out = nodes::NPUAntiQuant::Out;

constexpr const char* kOp = "npu_anti_quant";

// Blocks of int8, or of int4 that are stored eight to an int32, as floats.
class IntegerBlock {
 public:
  const float* Load(const TensorView& x, int64_t at, int64_t count) {
    if (x.dtype == DType::kInt8) return values_.Load(x, at, count);
    UnpackInt4(x.as<const uint32_t>() + at / 8, unpacked_, count / 8);
    const TensorView bytes{.data = unpacked_, .dtype = DType::kInt8, .present = true, .shape = {count}};
    return values_.Load(bytes, 0, count);
  }

 private:
  FloatBlock values_;
  alignas(64) int8_t unpacked_[kRowBlock];
};

class AntiQuantKernel final : public Kernel {
 public:
  explicit AntiQuantKernel(const KernelInfo& info) {
    if (info.attributes.Has("dst_dtype")) {
      const int64_t code = info.attributes.Int("dst_dtype");
      NPU_OP_CHECK(
          kOp, code == static_cast<int64_t>(TypeCode::kFloat16) || code == static_cast<int64_t>(TypeCode::kBFloat16),
          "Input dst_type must be valid, but got UNKNOWN_SCALAR: expected dst_dtype to be the type "
          "code 1 (float16) or 27 (bfloat16), got ",
          code);
      if (code == static_cast<int64_t>(TypeCode::kBFloat16)) to_ = DType::kBFloat16;
    }
    if (info.attributes.Has("src_dtype")) {
      from_ = QuantizedTypeOf(kOp, "src_dtype", info.attributes.Int("src_dtype"),
                              {{TypeCode::kInt8, QuantizedType::kInt8}, {TypeCode::kInt4, QuantizedType::kInt4}});
      from_given_ = true;
    }
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), scale = ctx.Input(In::scale), offset = ctx.Input(In::offset);
    NPU_OP_CHECK(kOp, x && scale, "expected the tensors x and scale");
    NPU_OP_CHECK(kOp, !from_given_ || x.dtype == StorageOf(from_), "expected x of ", NameOf(StorageOf(from_)),
                 " for src_dtype ", NameOf(from_), ", got ", NameOf(x.dtype));
    const bool is_int4 = x.dtype == DType::kInt32;
    Shape shape = x.shape;
    if (is_int4) {
      NPU_OP_CHECK(kOp, shape.rank() >= 1, "expected x of rank >= 1 for int4, got a scalar");
      NPU_OP_CHECK(kOp, !__builtin_mul_overflow(shape.back(), 8, &shape[shape.rank() - 1]),
                   "expected a shape whose number of elements fits int64, got ", x.shape);
    }
    const int64_t columns = shape.rank() == 0 ? 1 : shape.back();
    NPU_OP_CHECK(kOp, scale.shape.rank() == 1 && (scale.shape[0] == 1 || scale.shape[0] == columns),
                 "expected scale [1] or [", columns, "], got ", scale.shape);
    NPU_OP_CHECK(kOp, !offset || offset.shape == scale.shape, "expected offset of scale's shape ", scale.shape,
                 ", got ", offset.shape);
    const TensorView y = ctx.Output(Out::y, to_, shape);
    if (y.elements() == 0) return;
    const int64_t scales = scale.elements();
    auto* floats = static_cast<float*>(ctx.Workspace(static_cast<size_t>(2 * scales) * sizeof(float)));
    DispatchFloats(kOp, to_, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [x, scale, offset, scales, columns, floats, rows = y.elements() / columns, out = y.as<T>()] {
        ConvertToFloats(scale, floats);
        if (offset) {
          ConvertToFloats(offset, floats + scales);
        } else {
          std::fill_n(floats + scales, scales, 0.0f);
        }
        const RowParameter all_scales{floats, scales != 1}, all_offsets{floats + scales, scales != 1};
        ForEachPiece(rows, columns, [&](int64_t row, int64_t begin, int64_t count) {
          IntegerBlock integers;
          OutBlock<T> result;
          ForEachBlock(count, [&](int64_t from, int64_t n) {
            T* to = out + row * columns + begin + from;
            DequantizeBlock(integers.Load(x, row * columns + begin + from, n), all_scales.From(begin + from),
                            all_offsets.From(begin + from), result.Values(to), n);
            result.Commit(to, n);
          });
        });
      });
    });
  }

 private:
  DType to_ = DType::kFloat16;
  QuantizedType from_ = QuantizedType::kInt8;
  bool from_given_ = false;
};

NPU_KERNEL(NPUAntiQuant, AntiQuantKernel);

}  // namespace
}  // namespace npu
