// DynamicQuantizeLSTM: LSTM by products of 8-bit integers, as onnxruntime.quantization.quantize_dynamic writes it. X is
// quantised to uint8 over its range, the hidden state at each step over that of each sequence, so that no sequence
// depends on others. (Onnxruntime's CPU provider takes the range of the sequences that a thread has.)
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/kernels/quantization/dynamic_uint8.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/recurrent/lstm_cell.h"

namespace npu {
namespace {

constexpr const char* kOp = "DynamicQuantizeLSTM";
constexpr DTypeSet kFloat32{DType::kFloat32};

// Rows of floats, quantised, times the weight of one direction, [depth, columns].
class QuantisedProduct {
 public:
  gemm::Matrix weight;
  gemm::PackedMatrix packed;  // has data if the weight is a constant
  DType dtype = DType::kInt8;
  gemm::Epilogue epilogue;
  const ScaleAndPoint* whole = nullptr;  // of all rows; null: each row has its own

  int64_t columns() const { return weight.columns; }
  void operator()(const float* a, int64_t rows, float* c, int64_t /*turn*/ = 0) const {
    const int64_t depth = weight.rows;
    if (depth == 0) return std::fill_n(c, rows * columns(), 0.0f), void();
    std::vector<uint8_t> quantised(static_cast<size_t>(rows * depth));
    std::vector<float> scales(static_cast<size_t>(rows));
    std::vector<int32_t> points(static_cast<size_t>(rows));
    ParallelFor(rows, RowGrain(depth), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* from = a + row * depth;
        const ScaleAndPoint made = whole != nullptr ? *whole : Own(from, depth);
        scales[static_cast<size_t>(row)] = made.scale;
        points[static_cast<size_t>(row)] = made.point;
        const float point = made.point;
        ForEachBlock(depth, [&](int64_t at, int64_t n) {
          QuantizeBlock(QuantizeBy::kDivision, QuantizedType::kUInt8, from + at, {&made.scale, false}, {&point, false},
                        quantised.data() + row * depth + at, n);
        });
      }
    });
    gemm::Epilogue all = epilogue;
    all.row_scale = {scales.data(), 1};
    all.integers.a_zero_point = {points.data(), 1};
    const gemm::Matrix left = gemm::Matrix::RowMajor(quantised.data(), rows, depth);
    const gemm::Result result{c, DType::kFloat32, columns()};
    if (packed.data != nullptr) {
      gemm::Multiply(left, packed, result, all);
    } else {
      gemm::Multiply(DType::kUInt8, left, dtype, weight, result, all);
    }
  }

 private:
  static ScaleAndPoint Own(const float* row, int64_t depth) {
    Extremes range;
    range.Add(row, depth);
    return UInt8ScaleOf(range);
  }
};

// W or R, [directions, depth, 4 * hidden], with its scales and zero points: one, or one for each column, of a
// direction.
class QuantisedWeights {
 public:
  bool Keep(const TensorView& constant, Stream& stream) {
    if (constant.shape.rank() != 3 || constant.elements() == 0 || !kByteTypes.Contains(constant.dtype)) return false;
    view_ = constant;
    for (int64_t d = 0; d < constant.shape[0]; ++d) {
      kept_.push_back(std::make_unique<gemm::PackedWeight>());
      kept_.back()->Pack(kOp, constant.dtype, MatrixOf(constant, d), stream);
    }
    view_.data = nullptr;
    return true;
  }
  TensorView Of(const TensorView& given) const { return kept_.empty() ? given : view_; }

  // What the products of a call read.
  struct Operand {
    TensorView weight, scale, point;
    int32_t* points = nullptr;  // room for them
    ScaleAndPoint* whole = nullptr;
  };
  static Operand Take(OpContext& ctx, const TensorView& weight, const char* name, size_t scale, size_t point) {
    const Operand operand{weight, ctx.Input(scale), ctx.Input(point)};
    const Shape& w = weight.shape;
    const Shape one{w[0]}, each{w[0], w[2]};
    const auto fits = [&](const TensorView& view) { return view.shape == one || view.shape == each; };
    NPU_OP_CHECK(kOp, fits(operand.scale) && fits(operand.point) && operand.point.dtype == weight.dtype, "expected ",
                 name, "_scale and ", name, "_zero_point of shape ", one, " or ", each, ", the latter of the type of ",
                 name, ", got ", operand.scale.shape, " and ", NameOf(operand.point.dtype), " ", operand.point.shape);
    Operand with = operand;
    const auto bytes = static_cast<size_t>(operand.point.elements()) * sizeof(int32_t);
    with.points = static_cast<int32_t*>(ctx.Workspace(bytes));
    return with;
  }
  // In the launch.
  std::vector<QuantisedProduct> Products(const Operand& operand) const {
    for (int64_t i = 0; i < operand.point.elements(); ++i) operand.points[i] = ByteAt(operand.point, i);
    const auto line = [](const auto* values, const TensorView& view, int64_t d) {
      const bool each = view.shape.rank() == 2;
      return gemm::PerLine<std::remove_cvref_t<decltype(*values)>>{values + d * (each ? view.shape[1] : 1),
                                                                   each ? 1 : 0};
    };
    std::vector<QuantisedProduct> products;
    for (int64_t d = 0; d < operand.weight.shape[0]; ++d) {
      QuantisedProduct product;
      product.weight = MatrixOf(operand.weight, d);
      product.dtype = operand.weight.dtype;
      if (!kept_.empty()) {
        product.packed = kept_[static_cast<size_t>(d)]->matrix(product.weight);
        product.packed.dtype = DType::kUInt8;
      }
      product.epilogue.column_scale = line(operand.scale.as<const float>(), operand.scale, d);
      product.epilogue.integers.b_zero_point = line(static_cast<const int32_t*>(operand.points), operand.point, d);
      product.whole = operand.whole;
      products.push_back(product);
    }
    return products;
  }

 private:
  static gemm::Matrix MatrixOf(const TensorView& weight, int64_t d) {
    const Shape& s = weight.shape;
    const char* data = weight.as<const char>();
    return gemm::Matrix::RowMajor(data == nullptr ? nullptr : data + d * s[1] * s[2], s[1], s[2]);
  }

  std::vector<std::unique_ptr<gemm::PackedWeight>> kept_;
  TensorView view_;
};

class DynamicQuantizeLstmKernel final : public Kernel {
 public:
  struct Cell : recurrent::LstmCell<float, QuantisedProduct> {
    static constexpr recurrent::Kind kKind{kOp, 4, true, true};
    using LstmCell::LstmCell;
  };

  explicit DynamicQuantizeLstmKernel(const KernelInfo& info)
      : attributes_(info.attributes),
        settings_(kOp, info.attributes),
        activations_(kOp, info.attributes, Cell::Activations(), settings_.directions()) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == 1) return of_input_.Keep(constant, stream);
    return input == 2 && of_hidden_.Keep(constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView w = of_input_.Of(ctx.Input(1)), r = of_hidden_.Of(ctx.Input(2));
    NPU_OP_CHECK(kOp,
                 w.shape.rank() == 3 && r.shape.rank() == 3 && w.shape[2] == r.shape[2] && r.shape[2] == 4 * r.shape[1],
                 "expected W [directions, inputs, 4 * hidden] and R [directions, hidden, 4 * hidden], got ", w.shape,
                 " and ", r.shape);
    const recurrent::Layer layer(Cell::kKind, settings_, ctx, AsLayerWeight(w), AsLayerWeight(r));
    auto of_input = QuantisedWeights::Take(ctx, w, "W", 8, 9);
    const auto of_hidden = QuantisedWeights::Take(ctx, r, "R", 10, 11);
    const TensorView y = ctx.Output(0, DType::kFloat32, layer.output);
    const TensorView hidden = ctx.Output(1, DType::kFloat32, layer.state);
    const TensorView memory = ctx.Output(2, DType::kFloat32, layer.state);
    if (layer.batch == 0) return;
    of_input.whole = static_cast<ScaleAndPoint*>(ctx.Workspace(sizeof(ScaleAndPoint)));
    DynamicUInt8::Launch(ctx, kOp, layer.x, nullptr, &of_input.whole->scale, &of_input.whole->point);
    const recurrent::Outputs<float> outputs{y.as<float>(), hidden.as<float>(), memory.as<float>()};
    ctx.Launch(kOp, [this, layer, outputs, of_input, of_hidden] {
      if (layer.lengths) layer.CheckedLengths(kOp).CheckFirst(layer.batch);
      const auto inputs = of_input_.Products(of_input), states = of_hidden_.Products(of_hidden);
      std::vector<Cell> cells;
      for (int64_t d = 0; d < layer.directions; ++d) {
        const auto index = static_cast<size_t>(d);
        const recurrent::CellParts<float, QuantisedProduct> parts{layer, settings_,     activations_,
                                                                  d,     inputs[index], {states[index]}};
        cells.emplace_back(parts, attributes_);
      }
      recurrent::ForSequences(
          layer.batch, layer.directions, 4 * layer.hidden, layer.hidden, [&](int64_t d, int64_t first, int64_t count) {
            const Cell& cell = cells[static_cast<size_t>(d)];
            recurrent::Steps<float, Cell>(layer, cell, d, settings_.reverse(d), outputs).Run(first, count);
          });
    });
  }

 private:
  // As LSTM has it: rows of gates, of the type of X.
  static TensorView AsLayerWeight(const TensorView& weight) {
    const Shape& s = weight.shape;
    return {nullptr, DType::kFloat32, true, Shape{s[0], s[2], s[1]}};
  }

  Attributes attributes_;
  recurrent::Settings settings_;
  recurrent::ActivationList activations_;
  QuantisedWeights of_input_, of_hidden_;
};

OpDef Definition() {
  OpDef def{
      .type = kOp,
      .inputs = {Input("X", kFloat32), Input("W", kByteTypes), Input("R", kByteTypes), OptionalInput("B", kFloat32),
                 OptionalInput("sequence_lens", {DType::kInt32}), OptionalInput("initial_h", kFloat32),
                 OptionalInput("initial_c", kFloat32), OptionalInput("P", kFloat32), Input("W_scale", kFloat32),
                 Input("W_zero_point", kByteTypes), Input("R_scale", kFloat32), Input("R_zero_point", kByteTypes)},
      .outputs = {OptionalOutput("Y", kFloat32), OptionalOutput("Y_h", kFloat32), OptionalOutput("Y_c", kFloat32)},
      .attributes = recurrent::LayerAttributes(),
      .make = MakeKernel<DynamicQuantizeLstmKernel>,
  };
  def.attributes.push_back(IntAttribute("input_forget", 0));
  return Microsoft(std::move(def));
}

NPU_ONNX_KERNEL(Definition());

}  // namespace
}  // namespace npu
