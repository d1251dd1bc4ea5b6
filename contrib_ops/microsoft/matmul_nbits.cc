// MatMulNBits: A times a weight of 2, 4 or 8 bits in blocks along K, each with a scale and a zero point. The weight is
// kept in panel order as int4 or int8, less the middle of the range, which the zero points make up for.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "contrib_ops/microsoft/group_order.h"
#include "contrib_ops/microsoft/integer_bits.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/packed_scales.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "MatMulNBits";

// What the attributes say of the weight.
struct Blocks {
  explicit Blocks(const Attributes& attributes)
      : k(attributes.Int("K")),
        n(attributes.Int("N")),
        bits(attributes.Int("bits")),
        size(attributes.Int("block_size")) {
    NPU_OP_CHECK(kOp, k > 0 && n > 0 && k <= INT32_MAX && n <= INT32_MAX, "expected K and N from 1 to 2147483647, got ",
                 k, " and ", n);
    NPU_OP_CHECK(kOp, bits == 2 || bits == 4 || bits == 8, "expected bits of 2, 4 or 8, got ", bits);
    NPU_OP_CHECK(kOp, size >= 16 && size <= (1 << 20) && (size & (size - 1)) == 0,
                 "expected a block_size that is a power of 2 from 16 on, got ", size);
  }

  int64_t count() const { return (k + size - 1) / size; }  // of a column
  int64_t row_bytes() const { return count() * size * bits / 8; }
  int64_t point_bytes() const { return (count() * bits + 7) / 8; }  // of a column
  int middle() const { return 1 << (bits - 1); }

  int64_t k, n, bits, size;
};

class MatMulNBitsKernel final : public Kernel {
 public:
  explicit MatMulNBitsKernel(const KernelInfo& info)
      : blocks_(info.attributes), round_a_(info.attributes.Int("accuracy_level") == 4) {
    if (!info.input_dtypes.empty()) dtype_ = info.input_dtypes[0];
    has_groups_ = info.input_dtypes.size() > kGroups && info.input_dtypes[kGroups] != DType::kUndefined;
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == 1) {
      NPU_OP_CHECK(kOp, constant.dtype == DType::kUInt8 && constant.elements() == blocks_.n * blocks_.row_bytes(),
                   "expected B of ", blocks_.n, " columns of ", blocks_.row_bytes(), " bytes, got shape ",
                   constant.shape);
      CentreWeight(constant, stream);
      if (!has_groups_ || order_) PackWeight(stream);
      return true;
    }
    if (input == kGroups) {
      const int64_t given = constant.elements();
      NPU_OP_CHECK(kOp, given == blocks_.k || given == blocks_.count() * blocks_.size, "expected g_idx with ",
                   blocks_.k, " elements, got shape ", constant.shape);
      stream.Launch(kOp, [this, constant] {
        order_.emplace(kOp, constant.as<const int32_t>(), blocks_.k, blocks_.count(), blocks_.size);
      });
      stream.Synchronize();
      if (!centred_.empty()) PackWeight(stream);
      return true;
    }
    if (!kFloats.Contains(dtype_)) return false;
    if (input == 2) {  // what is wrong with them is said by Compute
      if (has_groups_ || constant.dtype != dtype_ || constant.elements() != blocks_.n * blocks_.count()) return false;
      packed_scales_.Pack(kOp, dtype_, BlockValues(constant.data), stream);
      return true;
    }
    if (input != 3) return false;
    CheckPoints(constant);
    offsets_.resize(BytesFor(dtype_, blocks_.n * blocks_.count()));
    stream.Launch(kOp, [this, constant] { FillOffsets(constant, offsets_.data()); });
    stream.Synchronize();
    if (!has_groups_) {
      packed_offsets_.Pack(kOp, dtype_, BlockValues(offsets_.data()), stream);
      offsets_ = {};
    }
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0), points = ctx.Input(3), bias = ctx.Input(5);
    const TensorView scales = packed_scales_ ? packed_scales_.values() : ctx.Input(2);
    NPU_OP_CHECK(kOp, packed_, "expected a constant B");
    NPU_OP_CHECK(kOp, a.shape.rank() >= 1 && a.shape.back() == blocks_.k, "expected A [.., ", blocks_.k,
                 "], got shape ", a.shape);
    NPU_OP_CHECK(kOp, scales.dtype == a.dtype && scales.elements() == blocks_.n * blocks_.count(), "expected ",
                 blocks_.n * blocks_.count(), " scales of A's type, got ", NameOf(scales.dtype), " ", scales.shape);
    NPU_OP_CHECK(kOp, !bias || (bias.dtype == a.dtype && bias.shape == Shape{blocks_.n}), "expected bias of ",
                 NameOf(a.dtype), " [", blocks_.n, "], got ", NameOf(bias.dtype), " ", bias.shape);
    Shape shape = a.shape;
    shape[shape.rank() - 1] = blocks_.n;
    const TensorView y = ctx.Output(0, a.dtype, shape);
    if (y.elements() == 0) return;
    const void* offsets = packed_offsets_ ? packed_offsets_.values().data : offsets_.data();  // null: none
    if (points) {                                                                             // given by the call
      CheckPoints(points);
      NPU_OP_CHECK(kOp, a.dtype == dtype_, "expected A of ", NameOf(dtype_), ", got ", NameOf(a.dtype));
      void* scratch = ctx.Workspace(BytesFor(dtype_, blocks_.n * blocks_.count()));
      ctx.Launch(kOp, [this, points, scratch] { FillOffsets(points, scratch); });
      offsets = scratch;
    }
    Operands operands{a.data, scales.data, offsets};
    const int64_t rows = a.elements() / blocks_.k;
    if (order_) operands = InOrder(ctx, a, operands, rows);
    const gemm::Dequantization dequantization{.scale = operands.scales,
                                              .offset = operands.offsets,
                                              .dtype = a.dtype,
                                              .group = blocks_.size,
                                              .group_stride = 1,
                                              .column_stride = order_ ? order_->blocks() : blocks_.count(),
                                              .scale_panel = packed_scales_.panel(),
                                              .offset_panel = packed_offsets_.panel(),
                                              .round_a = round_a_};
    ctx.Launch(kOp, [this, operands, type = a.dtype, bias, y, rows, dequantization] {
      gemm::Epilogue epilogue;
      if (bias) epilogue.addend = {bias.data, bias.dtype, 0, 1};
      gemm::Multiply(gemm::Matrix::RowMajor(operands.a, rows, depth()),
                     packed_.quantized({nullptr, depth(), blocks_.n}, type, dequantization),
                     {y.data, y.dtype, blocks_.n}, epilogue);
    });
  }

 private:
  static constexpr size_t kGroups = 4;

  // What the product reads beside the weight.
  struct Operands {
    const void *a, *scales, *offsets;
  };

  int64_t depth() const { return order_ ? order_->rows() : blocks_.k; }
  // Values of blocks, which lie column by column.
  gemm::Matrix BlockValues(const void* data) const { return {data, blocks_.count(), blocks_.n, 1, blocks_.count()}; }

  // The operands in the order of g_idx, in scratch memory.
  Operands InOrder(OpContext& ctx, const TensorView& a, const Operands& given, int64_t rows) const {
    const auto scratch = [&](int64_t lines, int64_t width) {
      return ctx.Workspace(BytesFor(a.dtype, Shape{lines, width}.Elements()));
    };
    void* columns = scratch(rows, depth());
    void* scales = scratch(blocks_.n, order_->blocks());
    void* offsets = given.offsets == nullptr ? nullptr : scratch(blocks_.n, order_->blocks());
    DispatchFloats(kOp, a.dtype, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [=, this] {
        order_->Columns(static_cast<const T*>(given.a), rows, blocks_.k, static_cast<T*>(columns));
        order_->BlockValues(static_cast<const T*>(given.scales), blocks_.n, static_cast<T*>(scales));
        if (offsets != nullptr)
          order_->BlockValues(static_cast<const T*>(given.offsets), blocks_.n, static_cast<T*>(offsets));
      });
    });
    return {columns, scales, offsets};
  }
  void CentreWeight(const TensorView& constant, Stream& stream) {
    const int64_t bytes = blocks_.n * blocks_.row_bytes();
    centred_.resize(CentredBytes(blocks_.bits, bytes));
    stream.Launch(kOp, [&] { CentreBits(blocks_.bits, constant.as<const uint8_t>(), bytes, centred_.data()); });
    stream.Synchronize();
  }
  void PackWeight(Stream& stream) {
    int64_t pitch = blocks_.count() * blocks_.size;
    if (order_) {
      std::vector<uint8_t> ordered(static_cast<size_t>(blocks_.n * BytesOfLine(depth())));
      for (int64_t column = 0; column < blocks_.n; ++column)
        order_->Elements(centred_.data() + column * BytesOfLine(pitch), blocks_.bits == 8,
                         ordered.data() + column * BytesOfLine(depth()));
      centred_ = std::move(ordered);
      pitch = depth();
    }
    packed_.PackQuantized(kOp, CentredType(blocks_.bits), {centred_.data(), depth(), blocks_.n, 1, pitch},
                          stream);  // waits
    centred_ = {};
  }
  // Of the stored form; lines are whole blocks.
  int64_t BytesOfLine(int64_t elements) const { return blocks_.bits == 8 ? elements : elements / 2; }
  // Zero points are packed like the weight, or floats of A's type.
  void CheckPoints(const TensorView& points) const {
    const int64_t wanted = blocks_.n * (points.dtype == DType::kUInt8 ? blocks_.point_bytes() : blocks_.count());
    NPU_OP_CHECK(kOp, (points.dtype == DType::kUInt8 || points.dtype == dtype_) && points.elements() == wanted,
                 "expected ", wanted, " zero points of uint8 or of A's type, got ", NameOf(points.dtype), " ",
                 points.shape);
  }
  // The middle of the range less the zero point of each block, in A's type.
  void FillOffsets(const TensorView& points, void* offsets) const {
    DispatchFloats(kOp, dtype_, [&](auto type) {
      using T = decltype(type);
      const auto middle = static_cast<float>(blocks_.middle());
      for (int64_t column = 0; column < blocks_.n; ++column) {
        for (int64_t block = 0; block < blocks_.count(); ++block) {
          const int64_t at = column * blocks_.count() + block;
          float point;
          if (points.dtype == DType::kUInt8) {
            const uint8_t* row = points.as<const uint8_t>() + column * blocks_.point_bytes();
            point = static_cast<float>(BitsAt(row, blocks_.bits, block));
          } else {
            point = ToFloat(points.as<const T>()[at]);
          }
          static_cast<T*>(offsets)[at] = FromFloat<T>(middle - point);
        }
      }
    });
  }

  Blocks blocks_;
  bool round_a_;
  DType dtype_ = DType::kUndefined;  // of A, as the model declares it
  bool has_groups_ = false;
  std::optional<GroupOrder> order_;  // of g_idx
  std::vector<uint8_t> centred_;     // the weight until it is packed
  gemm::PackedWeight packed_;
  std::vector<char> offsets_;  // of constant zero points, where there is a g_idx
  gemm::PackedScales packed_scales_, packed_offsets_;
};

std::string WhyNot(const NodeView& node) {
  const int64_t bits = node.attributes.Int("bits");
  if (bits != 2 && bits != 4 && bits != 8) return Concat("MatMulNBits of ", bits, " bits is not implemented");
  if (node.constant.size() < 2 || !node.constant[1])
    return "MatMulNBits with a B that is no constant is not implemented";
  if (node.inputs.size() > 4 && node.inputs[4] != DType::kUndefined && !node.constant[4])
    return "MatMulNBits with a g_idx that is no constant is not implemented";
  if (node.inputs[2] != node.inputs[0]) return "MatMulNBits with scales of another type than A is not implemented";
  if (node.attributes.Int("weight_prepacked") != 0)
    return "MatMulNBits of a weight in another provider's layout is not implemented";
  return "";
}

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("A", kFloats), Input("B", {DType::kUInt8}), Input("scales", kFloats),
               OptionalInput("zero_points", kFloats | DTypeSet{DType::kUInt8}), OptionalInput("g_idx", {DType::kInt32}),
               OptionalInput("bias", kFloats)},
    .outputs = {Output("Y", kFloats)},
    .attributes = {RequiredInt("K"), RequiredInt("N"), IntAttribute("bits", 4), RequiredInt("block_size"),
                   IntAttribute("accuracy_level", 0), IntAttribute("weight_prepacked", 0)},
    .make = MakeKernel<MatMulNBitsKernel>,
    .unsupported = WhyNot,
}));

}  // namespace
}  // namespace npu
