#include "contrib_ops/microsoft/group_cache.h"

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantize.h"

namespace npu {

CacheForm CacheForm::Of(const char* op, OpContext& ctx, const std::string& quantisation, const char* name,
                        const TensorView& scale, DType dtype, int64_t heads, int64_t columns) {
  CacheForm form{dtype, columns, scale, quantisation == "PER_CHANNEL"};
  if (!scale) return form;
  NPU_OP_CHECK(op, columns <= kMaxQuantisedColumns && columns % 2 == 0, "expected an even head size up to ",
               kMaxQuantisedColumns, " of a quantised cache, got ", columns);
  const int64_t count = form.per_column ? heads * columns : 1;
  NPU_OP_CHECK(op, scale.elements() == count, "expected ", name, " of ", count, " elements for ", quantisation,
               ", got shape ", scale.shape);
  form.factors = static_cast<float*>(ctx.Workspace(static_cast<size_t>(count) * sizeof(float)));
  return form;
}

attention::AntiQuant CacheForm::Scales() const {
  if (!scale) return {};
  attention::AntiQuant quant{.scale = scale.data, .dtype = DType::kFloat32};
  if (per_column) {
    quant.head_stride = columns;
    quant.column_stride = 1;
  }
  return quant;
}

void CacheForm::SetFactors() const {
  if (!scale) return;
  for (int64_t i = 0; i < scale.elements(); ++i) {
    const float value = scale.as<const float>()[i];
    factors[i] = value == 0 ? 1.0f : 1 / value;
  }
}

void CacheForm::Quantize(float* row, int64_t head, char* to) const {
  const RowParameter factor{per_column ? factors + head * columns : factors, per_column};
  const float zero = 0.0f;
  if (dtype == DType::kFloat8E4M3FN) {
    for (int64_t i = 0; i < columns; ++i) row[i] *= factor.values[per_column ? i : 0];
    return NarrowFloats(dtype, {}, row, 0, columns, to);
  }
  int8_t integers[kMaxQuantisedColumns];
  ForEachBlock(columns, [&](int64_t at, int64_t n) {
    QuantizeBlock(QuantizeBy::kMultiplicationRoundedAtEnd, QuantizedType::kInt8, row + at, factor.From(at),
                  {&zero, false}, integers + at, n);
  });
  if (dtype == DType::kInt8) {
    std::copy_n(integers, columns, to);
    return;
  }
  const auto nibble = [&](int64_t i) { return std::clamp<int>(integers[i], -8, 7) + 8; };
  for (int64_t i = 0; i < columns; i += 2) to[i / 2] = static_cast<char>(nibble(i) | nibble(i + 1) << 4);
}

attention::CacheRows GroupCache::Operand() const {
  attention::CacheRows operand;
  operand.data = rows.data;
  operand.dtype = form.dtype;
  operand.row_stride = form.stored_columns();
  operand.head_stride = capacity() * operand.row_stride;
  operand.quant = form.Scales();
  return operand;
}

void GroupCache::MovePast(const std::vector<int64_t>& kept) const {
  if (past && past.data == rows.data) return;
  const int64_t bytes = form.row_bytes(), old_rows = past ? past.shape[2] : 0;
  ParallelFor(rows.shape[0] * heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = rows.as<char>() + i * capacity() * bytes;
      const int64_t count = std::min(kept[static_cast<size_t>(i / heads())], old_rows);
      if (count > 0) std::copy_n(past.as<const char>() + i * old_rows * bytes, count * bytes, to);
      std::fill(to + count * bytes, to + capacity() * bytes, 0);
    }
  });
}

void GroupCache::MoveToPresent(const std::vector<int64_t>& first, const std::vector<int64_t>& count) const {
  if (!present || rows.data == present.data) return;
  const int64_t bytes = form.row_bytes(), size = present.shape[2];
  ParallelFor(rows.shape[0] * heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto b = static_cast<size_t>(i / heads());
      char* to = present.as<char>() + i * size * bytes;
      std::copy_n(rows.as<const char>() + (i * capacity() + first[b]) * bytes, count[b] * bytes, to);
      std::fill(to + count[b] * bytes, to + size * bytes, 0);
    }
  });
}

}  // namespace npu
