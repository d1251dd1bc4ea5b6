// Attention whose query heads share key heads: the attributes, and the norms of new queries and keys, that
// GroupQueryAttention and PagedAttention have in common.
#pragma once

#include <cmath>
#include <cstdint>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/normalization/rms_norm.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The new rows of one operand; each holds its heads, one after the other, and ends `pitch` elements after it began.
struct NewRows {
  const char* data = nullptr;
  int64_t heads = 0, pitch = 0;
};

// RMS normalisation of each head.
struct HeadNorm {
  NewRows from;
  TensorView weight;  // absent: nothing is done
  void* to = nullptr;
  int64_t rows = 0, size = 0;
  double epsilon = 0.0;

  template <class T>
  void Run() const {
    if (!weight) return;
    ParallelFor(rows * from.heads, RowGrain(size), [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* head = reinterpret_cast<const T*>(from.data) + i / from.heads * from.pitch + i % from.heads * size;
        RmsNormRow(head, weight.as<const T>(), epsilon, static_cast<T*>(to) + i * size, size);
      }
    });
  }
};

class GroupedHeadsKernel : public Kernel {
 protected:
  GroupedHeadsKernel(const char* op, const KernelInfo& info)
      : heads_(info.attributes.Int("num_heads")),
        key_heads_(info.attributes.Int("kv_num_heads")),
        window_(info.attributes.Int("local_window_size")),
        rotary_(info.attributes.Bool("do_rotary")),
        interleaved_(info.attributes.Bool("rotary_interleaved")),
        op_(op),
        scale_(info.attributes.Float("scale")),
        softcap_(static_cast<float>(info.attributes.Float("softcap"))),
        norm_epsilon_(info.attributes.Float("qk_norm_epsilon")) {
    NPU_OP_CHECK(op, heads_ > 0 && key_heads_ > 0 && heads_ <= INT32_MAX && heads_ % key_heads_ == 0,
                 "expected a kv_num_heads that divides num_heads, got ", key_heads_, " and ", heads_);
    NPU_OP_CHECK(op, softcap_ >= 0 && std::isfinite(softcap_), "expected a softcap of 0 or more, got ", softcap_);
  }

  // Attention of heads of `size` elements; rows and sequences are to be added.
  attention::Problem ProblemOf(DType dtype, int64_t size) const {
    attention::Problem p;
    p.op = op_;
    p.query_dtype = p.output_dtype = p.key.dtype = p.value.dtype = dtype;
    p.heads = heads_;
    p.key_heads = key_heads_;
    p.head_size = p.value_size = size;
    p.scale = static_cast<float>(scale_ == 0 ? 1 / std::sqrt(static_cast<double>(size)) : scale_);
    p.softcap = softcap_;
    return p;
  }

  // The norm of `rows` that input `i` gives the weight of, if it is present; the rows are then its result.
  HeadNorm TakeNorm(OpContext& ctx, size_t i, const char* name, DType dtype, int64_t count, int64_t size,
                    NewRows& rows) const {
    HeadNorm norm{rows, ctx.Input(i), nullptr, count, size, norm_epsilon_};
    if (!norm.weight) return norm;
    NPU_OP_CHECK(op_, norm.weight.shape == Shape{size} && norm.weight.dtype == dtype, "expected ", name,
                 " of query's type and shape [", size, "], got ", norm.weight.shape);
    norm.to = ctx.Workspace(BytesFor(dtype, Shape{count, rows.heads, size}.Elements()));
    rows = {static_cast<const char*>(norm.to), rows.heads, rows.heads * size};
    return norm;
  }

  // The norms of the `count` new rows of queries and keys, whose weights are the inputs `q` and `k`.
  template <class Preparation>
  void TakeNorms(OpContext& ctx, size_t q, size_t k, DType dtype, int64_t count, Preparation& p) const {
    NPU_OP_CHECK(op_, ctx.Input(q).present == ctx.Input(k).present,
                 "expected both q_norm_weight and k_norm_weight, or none");
    p.query_norm = TakeNorm(ctx, q, "q_norm_weight", dtype, count, p.size, p.query);
    p.key_norm = TakeNorm(ctx, k, "k_norm_weight", dtype, count, p.size, p.key);
  }

  int64_t heads_, key_heads_, window_;
  bool rotary_, interleaved_;

 private:
  const char* const op_;
  double scale_;
  float softcap_;
  double norm_epsilon_;
};

}  // namespace npu
