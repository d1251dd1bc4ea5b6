// The cache of GroupQueryAttention, [B, Nkv, rows, D]: of the queries' type, or of 8 or 4 bits with scales of float32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "contrib_ops/microsoft/grouped_heads.h"
#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/movement/copy.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// How a cache holds rows of floats: as they are, or each value divided by its scale, rounded half to even and
// saturated.
struct CacheForm {
  static constexpr int64_t kMaxQuantisedColumns = 512;  // that the attention's core reads

  DType dtype =
      DType::kFloat32;       // kUInt8: two 4-bit integers to a byte, 8 more than they are, the first in its low bits
  int64_t columns = 0;       // of a row, a head's size
  TensorView scale = {};     // of a quantised cache
  bool per_column = false;   // [Nkv * columns] scales, else one
  float* factors = nullptr;  // one for each scale: 1 / scale, as onnxruntime multiplies

  // `quantisation` is the attribute: NONE, PER_TENSOR or PER_CHANNEL.
  static CacheForm Of(const char* op, OpContext& ctx, const std::string& quantisation, const char* name,
                      const TensorView& scale, DType dtype, int64_t heads, int64_t columns);

  int64_t stored_columns() const { return dtype == DType::kUInt8 ? columns / 2 : columns; }
  int64_t row_bytes() const { return stored_columns() * BitsOf(dtype) / 8; }
  attention::AntiQuant Scales() const;

  // In the launch, before Quantize.
  void SetFactors() const;
  void Quantize(float* row, int64_t head, char* to) const;
};

// Keys, or values, of one call.
struct GroupCache {
  CacheForm form;
  TensorView past, present;  // past may be absent
  TensorView rows;           // what attention reads: present, or a copy with rows that a window then drops

  int64_t heads() const { return rows.shape[1]; }
  int64_t capacity() const { return rows.shape[2]; }
  attention::CacheRows Operand() const;

  // The first kept[b] rows of each entry; others become 0, as in onnxruntime.
  void MovePast(const std::vector<int64_t>& kept) const;
  // `steps` rows of each entry b, from row first[b] on.
  template <class T>
  void Append(const NewRows& added, int64_t steps, const std::vector<int64_t>& first) const {
    ParallelFor(rows.shape[0] * heads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / heads(), head = i % heads(), bytes = form.row_bytes();
        const T* from = reinterpret_cast<const T*>(added.data) + b * steps * added.pitch + head * form.columns;
        char* to = rows.as<char>() + (i * capacity() + first[static_cast<size_t>(b)]) * bytes;
        if (!form.scale) {
          constexpr auto kElement = static_cast<int64_t>(sizeof(T));
          CopyRows(to, bytes, reinterpret_cast<const char*>(from), added.pitch * kElement, bytes, steps);
          continue;
        }
        float row[CacheForm::kMaxQuantisedColumns];
        for (int64_t step = 0; step < steps; ++step) {
          ToFloat(from + step * added.pitch, row, form.columns);
          form.Quantize(row, head, to + step * bytes);
        }
      }
    });
  }
  // Copies rows [first[b], first[b] + count[b]) of each entry to the beginning of `present`, if that is asked for and
  // was not read itself.
  void MoveToPresent(const std::vector<int64_t>& first, const std::vector<int64_t>& count) const;
};

}  // namespace npu
