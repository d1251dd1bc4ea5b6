// npu_gru(input, hx, weight_input, weight_hidden, bias_input, bias_hidden, seq_length; ..) -> y, output_h, update,
// reset, new, hidden_new. The semantics are in npu_gru.py.
#include "contrib_ops/recurrent/npu_gru.h"

#include <array>

#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/recurrent/time_major.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

using In = nodes::NPUGru::In;
using recurrent::CheckLayerTensor;
using recurrent::ForSequences;
using recurrent::GateProducts;
using recurrent::KeptPanels;
using recurrent::LayerResults;
using recurrent::LayerSizes;

constexpr const char* kOp = "npu_gru";
constexpr size_t kResults = 6;
constexpr int kGates = 3;

// Hidden units of one sequence at one step.
struct Row {
  const float *from_input, *from_hidden, *input_bias, *hidden_bias;
  int64_t input_gate, hidden_gate;       // from a gate to the next: the former of the biases, too
  const float* hidden;                   // before the step
  std::array<float*, kResults> results;  // y, h, z, r, n, h U_n + b_hn

  void Step(int64_t n) const {
    float *y = results[0], *h = results[1], *z = results[2], *r = results[3], *news = results[4], *third = results[5];
    const auto of_input = [&](int gate, int64_t k) __attribute__((always_inline)) {
      return from_input[gate * input_gate + k] + input_bias[gate * input_gate + k];
    };
    const auto of_hidden = [&](int gate, int64_t k) __attribute__((always_inline)) {
      return from_hidden[gate * hidden_gate + k] + hidden_bias[gate * input_gate + k];
    };
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      r[k] = math::Sigmoid(of_input(0, k) + of_hidden(0, k));
      z[k] = math::Sigmoid(of_input(1, k) + of_hidden(1, k));
      third[k] = of_hidden(2, k);
      news[k] = math::Tanh(of_input(2, k) + r[k] * third[k]);
      h[k] = (1 - z[k]) * news[k] + z[k] * hidden[k];
      y[k] = h[k];
    }
  }
};

class NpuGruKernel final : public Kernel {
 public:
  explicit NpuGruKernel(const KernelInfo&) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (constant.shape.rank() != 2) return false;
    if (input == In::weight_input) return of_input_.Keep(kOp, constant, 0, constant.shape[0], stream);
    return input == In::weight_hidden && of_hidden_.Keep(kOp, constant, 0, constant.shape[0], stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::input), h = ctx.Input(In::hx), w = of_input_.Of(ctx.Input(In::weight_input)),
                     u = of_hidden_.Of(ctx.Input(In::weight_hidden)), input_bias = ctx.Input(In::bias_input),
                     hidden_bias = ctx.Input(In::bias_hidden);
    NPU_OP_CHECK(
        kOp,
        x && input_bias && x.shape.rank() == 3 && input_bias.shape.rank() == 1 && input_bias.shape[0] % kGates == 0,
        "expected input [T, B, I] and bias_input [3 H], got ", x.shape, " and ", input_bias.shape);
    const LayerSizes sizes{x.shape[0], x.shape[1], x.shape[2], input_bias.shape[0] / kGates, input_bias.shape[0]};
    CheckLayerTensor(kOp, "hx", h, {1, sizes.batch, sizes.hidden}, x.dtype);
    CheckLayerTensor(kOp, "weight_input", w, {sizes.inputs, sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "weight_hidden", u, {sizes.hidden, sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "bias_input", input_bias, {sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "bias_hidden", hidden_bias, {sizes.columns}, x.dtype);
    const std::vector<recurrent::LayerResult> results = LayerResults(ctx, kResults, x.dtype, sizes);
    if (sizes.empty()) return;
    ctx.Launch(kOp, [=, products = GateProducts(ctx, sizes, of_input_, of_hidden_), inputs = FloatValues(ctx, x),
                     first = FloatValues(ctx, w), second = FloatValues(ctx, u), of_input = FloatValues(ctx, input_bias),
                     of_hidden = FloatValues(ctx, hidden_bias), state = FloatValues(ctx, h)] {
      products.Start(inputs.Load(kOp), first.Load(kOp), second.Load(kOp));
      const float *input_biases = of_input.Load(kOp), *hidden_biases = of_hidden.Load(kOp);
      const float* initial = state.Load(kOp);
      ForSequences(sizes.batch, 1, sizes.columns, sizes.hidden, [&](int64_t, int64_t first_row, int64_t count) {
        const float* before = initial;
        for (int64_t t = 0; t < sizes.steps; ++t) {
          const int64_t n = sizes.hidden;
          products.ForEachPart(t, before, first_row, count, t, [&](const GateProducts::Part& part) {
            for (int64_t b = 0; b < part.count; ++b) {
              const int64_t at = (part.first + b) * n + part.unit;
              Row row{part.from_input + b * part.input_row,
                      part.from_hidden + b * part.hidden_row,
                      input_biases + part.unit,
                      hidden_biases + part.unit,
                      part.input_gate,
                      part.hidden_gate,
                      before + at,
                      {}};
              for (size_t i = 0; i < kResults; ++i) row.results[i] = results[i].Step(t) + at;
              row.Step(part.units);
            }
          });
          before = results[1].Step(t);
        }
      });
      for (const recurrent::LayerResult& result : results) result.Store(kOp);
    });
  }

 private:
  KeptPanels of_input_, of_hidden_;
};

NPU_KERNEL(NPUGru, NpuGruKernel);

}  // namespace
}  // namespace npu
