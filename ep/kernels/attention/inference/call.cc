#include "ep/kernels/attention/inference/call.h"

#include "ep/kernels/attention/inference/combination.h"

namespace npu::attention {

Problem InferenceCall::MakeProblem() {
  NPU_OP_CHECK(a_.op, in_.query && in_.key && in_.value, "expected the tensors query, key and value");
  p_.op = a_.op;
  p_.heads = a_.heads;
  p_.key_heads = a_.key_heads;
  p_.scale = a_.scale;
  CheckTypes();
  CheckCombination();
  SetOperands();
  SetRope();
  SetPrefix();
  using Decode = InferenceAttributes::Decode;
  const bool single = q_.rows == 1 && !packed() && p_.rope_size == 0;
  decode_ = a_.decode == Decode::kAlways || (a_.decode == Decode::kSingleRow && single);
  NPU_OP_CHECK(a_.op, a_.decode != Decode::kAlways || q_.rows == 1, "expected one query row, got ", q_.rows);
  SetOutput();
  SetMask();
  SetBias();
  return p_;
}

Shape InferenceCall::LseShape() const {
  if (!a_.return_lse) return {1};
  return packed() ? Shape{q_.rows, a_.heads, 1} : Shape{q_.batch, a_.heads, q_.rows, 1};
}

void InferenceCall::CheckTypes() {
  const DType query = in_.query.dtype, key = in_.key.dtype, value = in_.value.dtype;
  const struct {
    const char* name;
    const TensorView& tensor;
  } antiquant[] = {{"antiquant_scale", in_.antiquant_scale},
                   {"key_antiquant_scale", in_.key_antiquant_scale},
                   {"value_antiquant_scale", in_.value_antiquant_scale}},
    scalars[] = {{a_.score_scale_name, in_.dequant_scale1},
                 {"quant_scale1", in_.quant_scale1},
                 {a_.value_scale_name, in_.dequant_scale2}};
  const bool integers = query == DType::kInt8;
  if (quantised() && !integers) {
    NPU_OP_CHECK(a_.op, key == value && (key == DType::kInt8 || key == DType::kInt32),
                 "expected key and value of int8, or of int32 that hold int4, with antiquant scales, got ", NameOf(key),
                 " and ", NameOf(value));
  } else {
    NPU_OP_CHECK(a_.op, key == query && value == query, "expected query, key and value of one dtype, got ",
                 NameOf(query), ", ", NameOf(key), " and ", NameOf(value));
  }
  for (const auto& x : scalars) {
    NPU_OP_CHECK(a_.op, bool(x.tensor) == integers, "expected ", integers ? "" : "no ", x.name, " with query ",
                 NameOf(query), ", got ", integers ? "none" : x.tensor.shape.ToString());
  }
  for (const auto& x : antiquant) {
    NPU_OP_CHECK(a_.op, !integers || !x.tensor, "expected no ", x.name, " with query int8, got ", x.tensor.shape);
  }
  p_.query_dtype = query;
  const DType floats = in_.query_rope ? in_.query_rope.dtype : DType::kFloat16;
  p_.bias_dtype = p_.output_dtype = integers ? floats : query;
  if (integers) {
    p_.score_scale = Scalar(a_.score_scale_name, in_.dequant_scale1);
    p_.weight_scale = Scalar("quant_scale1", in_.quant_scale1);
    p_.value_scale = Scalar(a_.value_scale_name, in_.dequant_scale2);
  }
}

void InferenceCall::CheckCombination() const {
  Combination parts;
  if (packed()) parts.layout = layout_.name;
  parts.rope = in_.query_rope || in_.key_rope;
  parts.prefix = in_.key_shared_prefix || in_.value_shared_prefix;
  parts.token_scales = in_.antiquant_scale ? ScalesTokens(a_.antiquant_mode)
                                           : quantised() && (ScalesTokens(a_.key_antiquant_mode) ||
                                                             ScalesTokens(a_.value_antiquant_mode));
  parts.cache_in_pieces = paged() && (in_.key.shape.rank() == 5 || in_.value.shape.rank() == 5);
  const std::string conflict = parts.Conflict();
  NPU_OP_CHECK(a_.op, conflict.empty(), conflict);
}

DeviceScalar InferenceCall::Scalar(const char* name, const TensorView& t) const {
  NPU_OP_CHECK(a_.op, t.elements() == 1, "expected ", name, " with one element, got ", t.shape);
  return {t.data, t.dtype};
}

void InferenceCall::SetOutput() {
  o_ = AxesOf(OutputShape(), layout_.output, a_.heads);
  p_.output = {nullptr, o_.head_stride, o_.row_stride};
  p_.lse_head_stride = packed() ? 1 : q_.rows;
  p_.lse_row_stride = packed() ? a_.heads : 1;
  const TensorView &scale = in_.quant_scale2, &offset = in_.quant_offset2;
  NPU_OP_CHECK(a_.op, scale || !offset, "expected quant_scale2 with quant_offset2, got none");
  if (!scale) return;
  const int64_t columns = Shape{a_.heads, p_.value_size}.Elements();
  NPU_OP_CHECK(a_.op, scale.elements() == 1 || scale.elements() == columns, "expected quant_scale2 with 1 or ", columns,
               " elements, got ", scale.shape);
  if (offset) {
    NPU_OP_CHECK(a_.op, offset.dtype == scale.dtype && offset.elements() == scale.elements(),
                 "expected quant_offset2 like quant_scale2, ", NameOf(scale.dtype), " ", scale.shape, ", got ",
                 NameOf(offset.dtype), " ", offset.shape);
  }
  p_.output_dtype = DType::kInt8;
  p_.output_scale = scale.data;
  p_.output_offset = offset ? offset.data : nullptr;
  p_.output_scale_dtype = scale.dtype;
  p_.output_scale_per_column = scale.elements() != 1;
}

}  // namespace npu::attention
