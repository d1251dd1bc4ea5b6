#include "ep/kernels/attention/core/bfloat16_operands.h"

#include <algorithm>

#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/microkernel.h"

namespace npu::attention {

namespace {

// Of the group that shares a key head: fewer are limited by reading keys and values, of which a copy would be read and
// written besides.
constexpr int64_t kFewestQueries = 32;
constexpr int64_t kGrainElements = 16 << 10;

}  // namespace

std::optional<Bfloat16Operands> Bfloat16Operands::Replace(OpContext& ctx, DType products, Problem& p) {
  if (products != DType::kBFloat16 || p.query_dtype != DType::kFloat32 || gemm::Bf16Kernel() == nullptr)
    return std::nullopt;
  int64_t most = 0;
  for (const Sequence& s : p.sequences) most = std::max(most, s.query_rows);
  if (most * (p.heads / p.key_heads) < kFewestQueries) return std::nullopt;
  Bfloat16Operands operands;
  operands.query_ = ReplaceRows(ctx, p, p.query, p.heads, p.head_size, &Sequence::query, &Sequence::query_rows);
  operands.key_ = ReplaceRows(ctx, p, p.key, p.key_heads, p.head_size, &Sequence::key, &Sequence::key_len);
  operands.value_ = ReplaceRows(ctx, p, p.value, p.key_heads, p.value_size, &Sequence::value, &Sequence::key_len);
  p.query_dtype = p.key.dtype = p.value.dtype = DType::kBFloat16;
  return operands;
}

Bfloat16Operands::Copy Bfloat16Operands::ReplaceRows(OpContext& ctx, Problem& p, Rows& rows, int64_t heads,
                                                     int64_t size, int64_t Sequence::* first,
                                                     int64_t Sequence::* count) {
  Copy copy{.from = static_cast<const float*>(rows.data),
            .heads = heads,
            .size = size,
            .head_stride = rows.head_stride,
            .row_stride = rows.row_stride,
            .sequences = {}};
  for (const Sequence& s : p.sequences) {
    copy.sequences.push_back({s.*first, s.*count});
    copy.most_rows = std::max(copy.most_rows, s.*count);
  }
  const int64_t of_head = copy.most_rows * size;
  for (size_t i = 0; i < p.sequences.size(); ++i) p.sequences[i].*first = static_cast<int64_t>(i) * heads * of_head;
  copy.to =
      static_cast<BFloat16*>(ctx.Workspace(BytesFor(DType::kBFloat16, std::ssize(p.sequences) * heads * of_head)));
  rows = {copy.to, of_head, size};
  return copy;
}

void Bfloat16Operands::Copy::Run() const {
  const int64_t of_head = most_rows * size;
  if (of_head == 0) return;
  ParallelFor(std::ssize(sequences) * heads, std::max<int64_t>(1, kGrainElements / of_head),
              [this, of_head](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const Source& source = sequences[static_cast<size_t>(i / heads)];
                  const float* rows = from + source.offset + i % heads * head_stride;
                  for (int64_t r = 0; r < source.rows; ++r)
                    FromFloat(rows + r * row_stride, to + i * of_head + r * size, size);
                }
              });
}

void Bfloat16Operands::Run() const {
  query_.Run();
  key_.Run();
  value_.Run();
}

}  // namespace npu::attention
