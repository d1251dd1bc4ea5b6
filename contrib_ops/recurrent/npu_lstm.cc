// npu_lstm(input, weight, bias, seq_mask, h, c; flag_seq, direction, ..) -> y, output_h, output_c, i, j, f, o, tanhc.
// The semantics are in npu_lstm.py.
#include "contrib_ops/recurrent/npu_lstm.h"

#include <algorithm>
#include <array>

#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/recurrent/time_major.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

using In = nodes::NPULstm::In;
using Out = nodes::NPULstm::Out;
using recurrent::CheckLayerTensor;
using recurrent::ForSequences;
using recurrent::GateProducts;
using recurrent::KeptPanels;
using recurrent::LayerResult;
using recurrent::LayerResults;
using recurrent::LayerSizes;

constexpr const char* kOp = "npu_lstm";
constexpr size_t kResults = 8;
constexpr int kGates = 4;

// Hidden units of one sequence at one step.
struct Row {
  const float *from_input, *from_hidden, *bias;
  int64_t input_gate, hidden_gate;  // from a gate to the next: the former of the bias, too
  const float *hidden, *cell;       // before the step
  float *h, *c;
  std::array<float*, 5> gates;  // i, j, f, o, tanh(c)

  // kGates: they are results, too.
  template <bool kGates>
  void Step(int64_t n) const {
    const auto at = [&](int gate, int64_t k) __attribute__((always_inline)) {
      return from_input[gate * input_gate + k] + from_hidden[gate * hidden_gate + k] + bias[gate * input_gate + k];
    };
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      const float i = math::Sigmoid(at(0, k)), f = math::Sigmoid(at(1, k)), j = math::Tanh(at(2, k)),
                  o = math::Sigmoid(at(3, k));
      const float news = f * cell[k] + i * j, tanhc = math::Tanh(news);
      c[k] = news;
      h[k] = o * tanhc;
      if constexpr (kGates) {
        gates[0][k] = i;
        gates[1][k] = j;
        gates[2][k] = f;
        gates[3][k] = o;
        gates[4][k] = tanhc;
      }
    }
  }
  // Keeps the state before where `mask` is 0.
  void Mask(const float* mask, int64_t n) const {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      h[k] = mask[k] * h[k] + (1 - mask[k]) * hidden[k];
      c[k] = mask[k] * c[k] + (1 - mask[k]) * cell[k];
    }
  }
};

class NpuLstmKernel final : public Kernel {
 public:
  explicit NpuLstmKernel(const KernelInfo& info)
      : masked_(info.attributes.Bool("flagSeq")), reverse_(info.attributes.Bool("direction")) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != In::weight || constant.shape.rank() != 2 || constant.shape[1] % kGates != 0) return false;
    const int64_t hidden = constant.shape[1] / kGates, inputs = constant.shape[0] - hidden;
    return inputs > 0 && of_input_.Keep(kOp, constant, 0, inputs, stream) &&
           of_hidden_.Keep(kOp, constant, inputs, hidden, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), w = of_input_.Of(ctx.Input(In::weight)), bias = ctx.Input(In::bias),
                     mask = ctx.Input(In::seq_mask), h = ctx.Input(In::h), c = ctx.Input(In::c);
    NPU_OP_CHECK(kOp, x && bias && x.shape.rank() == 3 && bias.shape.rank() == 1 && bias.shape[0] % kGates == 0,
                 "expected input [T, B, I] and bias [4 H], got ", x.shape, " and ", bias.shape);
    const LayerSizes sizes{x.shape[0], x.shape[1], x.shape[2], bias.shape[0] / kGates, bias.shape[0]};
    CheckLayerTensor(kOp, "weight", w, {sizes.inputs + sizes.hidden, sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "bias", bias, {sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "h", h, {1, sizes.batch, sizes.hidden}, x.dtype);
    CheckLayerTensor(kOp, "c", c, {1, sizes.batch, sizes.hidden}, x.dtype);
    const Shape shape = sizes.result();
    NPU_OP_CHECK(kOp, !masked_ || (mask && mask.shape == shape), "expected seq_mask of shape ", shape, ", got ",
                 mask.shape);
    const std::vector<LayerResult> results = LayerResults(ctx, kResults, x.dtype, sizes);
    if (sizes.empty()) return;
    // y and output_h are the same numbers: one that is not asked for needs no memory of its own.
    const LayerResult &h_result = results[results[1].asked() ? 1 : 0], &c_result = results[2];
    const bool copies = results[0].asked() && results[1].asked();
    const bool gates = std::any_of(results.begin() + 3, results.end(), [](const LayerResult& r) { return r.asked(); });
    ctx.Launch(
        kOp, [=, masked = masked_, reverse = reverse_, products = GateProducts(ctx, sizes, of_input_, of_hidden_),
              inputs = FloatValues(ctx, x), weights = FloatValues(ctx, w), biases = FloatValues(ctx, bias),
              hidden = FloatValues(ctx, h), cell = FloatValues(ctx, c)] {
          const float* weight = weights.Load(kOp);
          products.Start(inputs.Load(kOp), weight, weight == nullptr ? nullptr : weight + sizes.inputs * sizes.columns);
          const float* all_biases = biases.Load(kOp);
          const float *initial_h = hidden.Load(kOp), *initial_c = cell.Load(kOp);
          ForSequences(sizes.batch, 1, sizes.columns, sizes.hidden, [&](int64_t, int64_t first, int64_t count) {
            const float *before_h = initial_h, *before_c = initial_c;
            for (int64_t step = 0; step < sizes.steps; ++step) {
              const int64_t t = reverse ? sizes.steps - 1 - step : step, n = sizes.hidden;
              products.ForEachPart(t, before_h, first, count, step, [&](const GateProducts::Part& part) {
                RowScratch kept(masked ? part.units : 0);
                for (int64_t b = 0; b < part.count; ++b) {
                  const int64_t at = (part.first + b) * n + part.unit;
                  Row row{part.from_input + b * part.input_row,
                          part.from_hidden + b * part.hidden_row,
                          all_biases + part.unit,
                          part.input_gate,
                          part.hidden_gate,
                          before_h + at,
                          before_c + at,
                          h_result.Step(t) + at,
                          c_result.Step(t) + at,
                          {}};
                  if (gates) {
                    for (size_t i = 0; i < row.gates.size(); ++i) row.gates[i] = results[3 + i].Step(t) + at;
                    row.Step<true>(part.units);
                  } else {
                    row.Step<false>(part.units);
                  }
                  if (masked) {
                    ReadMask(mask, t * sizes.state() + at, kept.values(), part.units);
                    row.Mask(kept.values(), part.units);
                  }
                  if (copies) std::copy_n(row.h, part.units, results[0].Step(t) + at);
                }
              });
              before_h = h_result.Step(t);
              before_c = c_result.Step(t);
            }
          });
          for (const LayerResult& result : results) result.Store(kOp);
        });
  }

 private:
  static void ReadMask(const TensorView& mask, int64_t at, float* values, int64_t n) {
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = at + k;
      values[k] = mask.dtype == DType::kInt32     ? static_cast<float>(mask.as<const int32_t>()[i])
                  : mask.dtype == DType::kFloat16 ? ToFloat(mask.as<const Float16>()[i])
                                                  : mask.as<const float>()[i];
    }
  }

  bool masked_, reverse_;
  KeptPanels of_input_, of_hidden_;
};

NPU_KERNEL(NPULstm, NpuLstmKernel);

}  // namespace
}  // namespace npu
