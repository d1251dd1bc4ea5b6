// SkipLayerNormalization and SkipSimplifiedLayerNormalization: layer and RMS normalisation of input + skip + bias,
// which is an output, too. Computed in float32 and rounded once.
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/normalization/moments.h"
#include "ep/kernels/normalization/rms_norm.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

struct SkipNorm {
  const char* op;
  bool centre;  // layer normalisation
  double epsilon;
  TensorView x, skip, gamma, beta, bias;  // the last two may be absent
  TensorView y, mean, inverse, sum;       // but the first may be absent
  int64_t n;

  template <class T>
  void Run() const {
    const int64_t rows = x.elements() / n, skip_rows = skip.elements() / n;
    ParallelFor(rows, RowGrain(n), [&, this](int64_t begin, int64_t end) {
      RowScratch values(n), more(n);
      for (int64_t row = begin; row < end; ++row) {
        float* v = values.values();
        ToFloat(x.as<const T>() + row * n, v, n);
        Add(skip.as<const T>() + row % skip_rows * n, more.values(), v);
        if (bias) Add(bias.as<const T>(), more.values(), v);
        if (sum) FromFloat(v, sum.as<T>() + row * n, n);
        const auto load = [v](int64_t first, int64_t) { return v + first; };
        const Moments m = centre ? RowMoments(n, epsilon, load) : Moments{0.0f, ReciprocalRms(v, epsilon, n)};
        NormalizeRow(n, m, load, gamma.as<const T>(), beta.as<const T>(), y.as<T>() + row * n);
        if (mean) mean.as<float>()[row] = m.mean;
        if (inverse) inverse.as<float>()[row] = m.rstd;
      }
    });
  }

 private:
  template <class T>
  void Add(const T* from, float* scratch, float* to) const {
    ToFloat(from, scratch, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += scratch[i];
  }
};

template <bool centre>
class SkipNormKernel final : public Kernel {
 public:
  static constexpr const char* kOp = centre ? "SkipLayerNormalization" : "SkipSimplifiedLayerNormalization";

  explicit SkipNormKernel(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), skip = ctx.Input(1), gamma = ctx.Input(2);
    const Shape& shape = x.shape;
    NPU_OP_CHECK(kOp, shape.rank() == 2 || shape.rank() == 3,
                 "expected an input [tokens, hidden] or [batch, sequence, hidden], got shape ", shape);
    const int64_t n = shape.back();
    NPU_OP_CHECK(kOp, n > 0, "expected elements to normalise, got shape ", shape);
    const Shape row{n};
    const Shape one_entry = shape.rank() == 3 ? Shape{1, shape[1], n} : shape;
    const Shape entry = shape.rank() == 3 ? Shape{shape[1], n} : shape;
    NPU_OP_CHECK(kOp, skip.dtype == x.dtype && (skip.shape == shape || skip.shape == one_entry || skip.shape == entry),
                 "expected skip of the input's type and shape ", shape, ", or of one batch entry, got ",
                 NameOf(skip.dtype), " ", skip.shape);
    const TensorView beta = centre ? ctx.Input(3) : TensorView{}, bias = ctx.Input(centre ? 4 : 3);
    const std::pair<const char*, const TensorView*> rows[] = {{"gamma", &gamma}, {"beta", &beta}, {"bias", &bias}};
    for (const auto& [name, view] : rows)
      NPU_OP_CHECK(kOp, !*view || (view->shape == row && view->dtype == x.dtype), "expected ", name, " of ",
                   NameOf(x.dtype), " ", row, ", got ", NameOf(view->dtype), " ", view->shape);
    Shape statistics = shape;
    statistics[shape.rank() - 1] = 1;
    const SkipNorm task{kOp,
                        centre,
                        epsilon_,
                        x,
                        skip,
                        gamma,
                        beta,
                        bias,
                        ctx.Output(0, x.dtype, shape),
                        ctx.Output(1, DType::kFloat32, statistics),
                        ctx.Output(2, DType::kFloat32, statistics),
                        ctx.Output(3, x.dtype, shape),
                        n};
    if (x.elements() == 0) return;
    DispatchFloats(kOp, x.dtype, [&](auto type) { ctx.Launch(kOp, [task] { task.Run<decltype(type)>(); }); });
  }

 private:
  double epsilon_;
};

template <bool centre>
OpDef Definition() {
  OpDef def{
      .type = SkipNormKernel<centre>::kOp,
      .inputs = {Input("input", kFloats), Input("skip", kFloats), Input("gamma", kFloats)},
      .outputs = {Output("output", kFloats), OptionalOutput("mean", {DType::kFloat32}),
                  OptionalOutput("inv_std_var", {DType::kFloat32}), OptionalOutput("input_skip_bias_sum", kFloats)},
      .attributes = {FloatAttribute("epsilon", 1e-12)},
      .make = MakeKernel<SkipNormKernel<centre>>,
  };
  if (centre) def.inputs.push_back(OptionalInput("beta", kFloats));
  def.inputs.push_back(OptionalInput("bias", kFloats));
  return Microsoft(def);
}

NPU_ONNX_KERNEL(Definition<true>());
NPU_ONNX_KERNEL(Definition<false>());

}  // namespace
}  // namespace npu
