// npu_lstm(input, weight, bias, seq_mask, h, c; flag_seq, direction, ..) -> y, output_h, output_c, i, j, f, o, tanhc.
// The semantics are in npu_lstm.py.
#include "contrib_ops/recurrent/npu_lstm.h"

#include <array>

#include "ep/kernels/float_values.h"
#include "ep/kernels/recurrent/time_major.h"
#include "ep/kernels/vector_math.h"

namespace npu {
namespace {

using In = nodes::NPULstm::In;
using Out = nodes::NPULstm::Out;
using recurrent::CheckLayerTensor;
using recurrent::ForSequences;
using recurrent::GateProducts;
using recurrent::KeptPanels;
using recurrent::LayerResults;
using recurrent::LayerSizes;

constexpr const char* kOp = "npu_lstm";
constexpr size_t kResults = 8;
constexpr int kGates = 4;

// Values of one sequence at one step.
struct Row {
  const float *from_input, *from_hidden, *bias;  // [4, n]
  const float *hidden, *cell;                    // before the step
  std::array<float*, kResults> results;          // y, h, c, i, j, f, o, tanh(c)

  void Step(int64_t n) const {
    float *h = results[1], *c = results[2], *i = results[3], *j = results[4], *f = results[5], *o = results[6],
          *tanhc = results[7];
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      i[k] = math::Sigmoid(from_input[k] + from_hidden[k] + bias[k]);
      f[k] = math::Sigmoid(from_input[n + k] + from_hidden[n + k] + bias[n + k]);
      j[k] = math::Tanh(from_input[2 * n + k] + from_hidden[2 * n + k] + bias[2 * n + k]);
      o[k] = math::Sigmoid(from_input[3 * n + k] + from_hidden[3 * n + k] + bias[3 * n + k]);
      c[k] = f[k] * cell[k] + i[k] * j[k];
      tanhc[k] = math::Tanh(c[k]);
      h[k] = o[k] * tanhc[k];
    }
  }
  // Keeps the state before where `mask` is 0.
  void Mask(const float* mask, int64_t n) const {
    float *h = results[1], *c = results[2];
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
    NPU_CHECK(x && bias && x.shape.rank() == 3 && bias.shape.rank() == 1 && bias.shape[0] % kGates == 0, "[", kOp,
              "] expected input [T, B, I] and bias [4 H], got ", x.shape, " and ", bias.shape);
    const LayerSizes sizes{x.shape[0], x.shape[1], x.shape[2], bias.shape[0] / kGates, bias.shape[0]};
    CheckLayerTensor(kOp, "weight", w, {sizes.inputs + sizes.hidden, sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "bias", bias, {sizes.columns}, x.dtype);
    CheckLayerTensor(kOp, "h", h, {1, sizes.batch, sizes.hidden}, x.dtype);
    CheckLayerTensor(kOp, "c", c, {1, sizes.batch, sizes.hidden}, x.dtype);
    const Shape shape = sizes.result();
    NPU_CHECK(!masked_ || (mask && mask.shape == shape), "[", kOp, "] expected seq_mask of shape ", shape, ", got ",
              mask.shape);
    const std::vector<recurrent::LayerResult> results = LayerResults(ctx, kResults, x.dtype, sizes);
    if (sizes.empty()) return;
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
              const float *from_input = products.FromInput(t),
                          *from_hidden = products.FromHidden(before_h, first, count, step);
              ParallelFor(count, RowGrain(32 * n), [&](int64_t begin, int64_t end) {
                std::vector<float> kept(masked ? static_cast<size_t>(n) : 0);
                for (int64_t b = first + begin; b < first + end; ++b) {
                  Row row{from_input + b * sizes.columns,
                          from_hidden + b * sizes.columns,
                          all_biases,
                          before_h + b * n,
                          before_c + b * n,
                          {}};
                  for (size_t i = 0; i < kResults; ++i) row.results[i] = results[i].Step(t) + b * n;
                  row.Step(n);
                  if (masked) {
                    ReadMask(mask, (t * sizes.batch + b) * n, kept);
                    row.Mask(kept.data(), n);
                  }
                  std::copy_n(row.results[1], n, row.results[0]);
                }
              });
              before_h = results[1].Step(t);
              before_c = results[2].Step(t);
            }
          });
          for (const recurrent::LayerResult& result : results) result.Store(kOp);
        });
  }

 private:
  static void ReadMask(const TensorView& mask, int64_t at, std::vector<float>& values) {
    for (size_t k = 0; k < values.size(); ++k) {
      const int64_t i = at + static_cast<int64_t>(k);
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
