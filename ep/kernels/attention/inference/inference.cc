#include "ep/kernels/attention/inference/inference.h"

#include <algorithm>
#include <utility>

#include "ep/kernels/attention/core/launch.h"
#include "ep/kernels/attention/inference/call.h"

namespace npu::attention {

InferenceAttributes::InferenceAttributes(const char* op, const Attributes& given, const char* scale_name)
    : op(op),
      layout(given.String("input_layout")),
      heads(given.Int("num_heads")),
      key_heads(given.Int("num_key_value_heads")),
      scale(static_cast<float>(given.Float(scale_name))) {}

InferenceLauncher::InferenceLauncher(const KernelInfo& info, InferenceAttributes attributes)
    : attributes_(std::move(attributes)), late_(info.late_inputs) {
  InferenceAttributes& a_ = attributes_;
  const bool known = std::find(a_.layouts.begin(), a_.layouts.end(), a_.layout) != a_.layouts.end();
  if (known) layout_ = FindLayout(a_.layout);
  if (layout_ == nullptr) {
    std::string names;
    for (const char* name : a_.layouts) names += (names.empty() ? "" : ", ") + std::string(name);
    Fail(ErrorCode::kInvalidArgument, "[", a_.op, "] expected input_layout ", names, ", got '", a_.layout, "'");
  }
  NPU_OP_CHECK(a_.op, a_.heads >= 1 && a_.heads <= INT32_MAX, "expected num_heads in [1, ", INT32_MAX, "], got ",
               a_.heads);
  NPU_OP_CHECK(a_.op, a_.key_heads >= 0, "expected num_key_value_heads >= 0, got ", a_.key_heads);
  if (a_.key_heads == 0) a_.key_heads = a_.heads;
  NPU_OP_CHECK(a_.op, a_.heads % a_.key_heads == 0, "expected num_key_value_heads to divide num_heads ", a_.heads,
               ", got ", a_.key_heads);
  NPU_OP_CHECK(a_.op, a_.sparse_mode >= 0 && a_.sparse_mode <= 4, "expected sparse_mode 0, 1, 2, 3 or 4, got ",
               a_.sparse_mode);
  a_.pre_tokens = std::clamp(a_.pre_tokens, -kUnbounded, kUnbounded);
  a_.next_tokens = std::clamp(a_.next_tokens, -kUnbounded, kUnbounded);
}

void InferenceLauncher::Launch(OpContext& ctx, InferenceInputs inputs,
                               const std::function<Outputs(DType, const InferenceCall&)>& allocate,
                               std::function<void()> before) const {
  NPU_OP_CHECK(attributes_.op, !inputs.padding_mask, "expected no padding_mask: the argument is reserved");
  InferenceCall call(attributes_, *layout_, std::move(inputs));
  Problem problem = call.MakeProblem();
  if (!late_) problem.sequences = call.MakeSequences();
  const auto [output, lse] = allocate(problem.output_dtype, call);
  problem.output.data = output.data;
  if (attributes_.return_lse) problem.lse = lse.as<float>();
  // An output that is not asked for by the attributes has one element.
  const auto prepare = [before = std::move(before), no_lse = attributes_.return_lse ? nullptr : lse.as<float>()] {
    if (no_lse != nullptr) *no_lse = 0.0f;
    if (before) before();
  };
  if (late_) {
    const size_t room = output ? Attention::MostWorkspaceBytes(problem, call.query_rows()) : 0;
    void* workspace = room > 0 ? ctx.Workspace(room) : nullptr;
    // Lengths are read in the launch: each replay of a captured graph may have others.
    ctx.Launch(attributes_.op, [call = std::move(call), problem = std::move(problem), workspace, room, prepare,
                                wanted = bool(output)]() mutable {
      prepare();
      if (!wanted) return;
      problem.sequences = call.MakeSequences();
      const Attention work(problem);
      NPU_CHECK(work.WorkspaceBytes() <= room, "expected to need at most ", room, " bytes of workspace, got ",
                work.WorkspaceBytes());
      work.Run(workspace);
    });
    return;
  }
  if (!output) problem.sequences.clear();
  LaunchWork(ctx, attributes_.op, Attention(std::move(problem)), prepare);
}

void InferenceKernel::Compute(OpContext& ctx) const {
  launcher_.Launch(ctx, read_(ctx), [&ctx](DType dtype, const InferenceCall& call) {
    const TensorView output = ctx.Output(0, dtype, call.OutputShape());
    return InferenceLauncher::Outputs{
        output, ctx.output_count() > 1 ? ctx.Output(1, DType::kFloat32, call.LseShape()) : TensorView()};
  });
}

}  // namespace npu::attention
