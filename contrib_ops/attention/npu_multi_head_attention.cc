// npu_multi_head_attention: projections, attention and output projection. The semantics are in
// npu_multi_head_attention.py. The scores are an output, so computing them in blocks of keys would save no memory.
#include "contrib_ops/attention/npu_multi_head_attention.h"

#include <algorithm>
#include <cmath>

#include "ep/kernels/attention/core/dropout.h"
#include "ep/kernels/convert.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/softmax/softmax_row.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMultiHeadAttention::In;
using Out = nodes::NPUMultiHeadAttention::Out;

constexpr const char* kOp = "npu_multi_head_attention";
// y[B*T, E] = alpha * (x W^T + bias)
struct Projection {
  TensorView x, weight, bias;
  void* y = nullptr;
  float alpha = 1.0f;

  void Run() const {
    const int64_t size = weight.shape[0];
    const gemm::Matrix b = gemm::Matrix::RowMajor(weight.data, size, size).Transposed();
    const gemm::Matrix a = gemm::Matrix::RowMajor(x.data, x.shape[0], size);
    gemm::Multiply(x.dtype, a, b, {y, x.dtype, size}, {.alpha = alpha, .addend = {bias.data, bias.dtype, 0, 1, alpha}});
  }
};

struct Sizes {
  int64_t batch = 0, heads = 0, size = 0, queries = 0, keys = 0;
  int64_t width() const { return heads * size; }
};

// Splits rows of all heads [B*S, N*D] into rows of each head [B, N, S, D].
template <class T>
void PartHeads(const T* from, T* to, const Sizes& z, int64_t rows) {
  ParallelFor(z.batch * rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < z.heads; ++h) {
        std::copy_n(from + r * z.width() + h * z.size, z.size,
                    to + ((r / rows * z.heads + h) * rows + r % rows) * z.size);
      }
    }
  });
}

// The operands and results of the attention of all heads.
struct Heads {
  Sizes z;
  TensorView query, key, value;  // [B, N, S, D]
  TensorView mask;
  int64_t mask_batch_stride = 0, mask_head_stride = 0;
  attention::Dropout dropout;
  TensorView scores, result, context;
  float* row_scores = nullptr;  // [T, S]

  template <class T>
  void Run() const {
    const int64_t plane = z.queries * z.keys;
    for (int64_t i = 0; i < z.batch * z.heads; ++i) {
      const gemm::Matrix q = gemm::Matrix::RowMajor(query.as<T>() + i * z.queries * z.size, z.queries, z.size);
      const gemm::Matrix k = gemm::Matrix::RowMajor(key.as<T>() + i * z.keys * z.size, z.keys, z.size);
      const gemm::Matrix v = gemm::Matrix::RowMajor(value.as<T>() + i * z.keys * z.size, z.keys, z.size);
      const T* added = mask.as<const T>() + i / z.heads * mask_batch_stride + i % z.heads * mask_head_stride;
      gemm::Multiply(query.dtype, q, k.Transposed(), {row_scores, DType::kFloat32, z.keys},
                     {.addend = {added, mask.dtype, z.keys, 1}});
      ParallelFor(z.queries, 16, [&](int64_t begin, int64_t end) {
        float factors[kFactors];
        for (int64_t r = begin; r < end; ++r) {
          float* row = row_scores + r * z.keys;
          SoftmaxRow(row, z.keys);
          const int64_t first = i * plane + r * z.keys;
          if (scores.dtype == DType::kFloat32) {
            std::copy_n(row, z.keys, scores.as<float>() + first);
          } else {
            FromFloat(row, scores.as<T>() + first, z.keys);
          }
          for (int64_t j = 0; dropout.active() && j < z.keys; j += kFactors) {
            const int64_t n = std::min(kFactors, z.keys - j);
            dropout.Fill(first + j, n, factors);
            for (int64_t c = 0; c < n; ++c) row[j + c] *= factors[c];
          }
          FromFloat(row, result.as<T>() + first, z.keys);
        }
      });
      const gemm::Matrix weights = gemm::Matrix::RowMajor(result.as<T>() + i * plane, z.queries, z.keys);
      T* out = context.as<T>() + i / z.heads * z.queries * z.width() + i % z.heads * z.size;
      gemm::Multiply(query.dtype, weights, v, {out, query.dtype, z.width()});
    }
  }

  static constexpr int64_t kFactors = 256;
};

class MultiHeadAttentionKernel final : public Kernel {
 public:
  explicit MultiHeadAttentionKernel(const KernelInfo& info) {
    const Attributes& a = info.attributes;
    sizes_.heads = a.Int("attn_head_num");
    sizes_.size = a.Int("attn_dim_per_head");
    sizes_.keys = a.Int("src_len");
    sizes_.queries = a.Int("tgt_len");
    keep_prob_ = static_cast<float>(1.0 - static_cast<double>(static_cast<float>(a.Float("dropout_prob"))));
    seed_ = static_cast<uint64_t>(a.Int("seed"));
    softmax_in_float_ = a.Bool("softmax_use_float");
    NPU_OP_CHECK(kOp, sizes_.heads >= 1, "expected attn_head_num >= 1, got ", sizes_.heads);
    NPU_OP_CHECK(kOp, sizes_.size >= 1, "expected attn_dim_per_head >= 1, got ", sizes_.size);
    NPU_OP_CHECK(kOp, sizes_.keys >= 1, "expected src_len >= 1, got ", sizes_.keys);
    NPU_OP_CHECK(kOp, sizes_.queries >= 1, "expected tgt_len >= 1, got ", sizes_.queries);
    NPU_OP_CHECK(kOp, keep_prob_ >= 0.0 && keep_prob_ <= 1.0, "expected dropout_prob in [0, 1], got ",
                 1.0 - keep_prob_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView query = ctx.Input(In::query), key = ctx.Input(In::key), value = ctx.Input(In::value);
    const TensorView mask = ctx.Input(In::attn_mask), bits = ctx.Input(In::dropout_mask);
    NPU_OP_CHECK(kOp, query && key && value && mask, "expected the tensors query, key, value and attn_mask");
    const DType dtype = query.dtype;
    Sizes z = sizes_;
    const int64_t width = Shape{z.heads, z.size}.Elements();
    NPU_OP_CHECK(kOp, query.shape.rank() == 2 && query.shape[0] % z.queries == 0 && query.shape[1] == width,
                 "expected query of shape [B * ", z.queries, ", ", width, "], got ", query.shape);
    z.batch = query.shape[0] / z.queries;
    const Shape source{Shape{z.batch, z.keys}.Elements(), width};
    Expect("key", key, dtype, source);
    Expect("value", value, dtype, source);
    static constexpr const char* kNames[] = {"query", "key", "value"};
    for (size_t i = 0; i < 3; ++i) {
      Expect(kNames[i], ctx.Input(In::query_weight + i), dtype, {width, width}, "_weight");
      if (ctx.Input(In::query_bias + i)) Expect(kNames[i], ctx.Input(In::query_bias + i), dtype, {width}, "_bias");
    }
    Expect("out_proj", ctx.Input(In::out_proj_weight), dtype, {width, width}, "_weight");
    if (ctx.Input(In::out_proj_bias)) Expect("out_proj", ctx.Input(In::out_proj_bias), dtype, {width}, "_bias");
    const Shape& m = mask.shape;
    NPU_OP_CHECK(kOp,
                 mask.dtype == dtype && m.rank() == 4 && (m[0] == 1 || m[0] == z.batch) &&
                     (m[1] == 1 || m[1] == z.heads) && m[2] == z.queries && m[3] == z.keys,
                 "expected attn_mask ", NameOf(dtype), " of shape [1 or ", z.batch, ", 1 or ", z.heads, ", ", z.queries,
                 ", ", z.keys, "], got ", NameOf(mask.dtype), " ", m);
    const Shape plane{z.batch, z.heads, z.queries, z.keys};
    const int64_t bytes = (plane.Elements() + 7) / 8;
    NPU_OP_CHECK(kOp, !bits || (bits.dtype == DType::kUInt8 && bits.elements() >= bytes),
                 "expected dropout_mask uint8 with ", bytes, " bytes, got ", NameOf(bits.dtype), " ", bits.shape);

    const TensorView y = Result(ctx, Out::y, dtype, query.shape);
    const TensorView kept = Result(ctx, Out::kept, DType::kUInt8, {bytes});
    const TensorView query_res = Result(ctx, Out::query_res, dtype, {z.batch, z.heads, z.queries, z.size});
    const TensorView key_res = Result(ctx, Out::key_res, dtype, {z.batch, z.heads, z.keys, z.size});
    const TensorView value_res = Result(ctx, Out::value_res, dtype, {z.batch, z.heads, z.keys, z.size});
    const TensorView scores = Result(ctx, Out::attn_scores, softmax_in_float_ ? DType::kFloat32 : dtype, plane);
    const TensorView result = Result(ctx, Out::attn_res, dtype, plane);
    const TensorView context = Result(ctx, Out::context, dtype, query.shape);
    if (z.batch == 0) return;

    void* rows = ctx.Workspace(std::max(query.bytes(), key.bytes()));
    const float scale = 1.0f / std::sqrt(static_cast<float>(z.size));
    const Projection projections[] = {{query, ctx.Input(In::query_weight), ctx.Input(In::query_bias), rows, scale},
                                      {key, ctx.Input(In::key_weight), ctx.Input(In::key_bias), rows},
                                      {value, ctx.Input(In::value_weight), ctx.Input(In::value_bias), rows}};
    const TensorView parted[] = {query_res, key_res, value_res};
    const Projection last{context, ctx.Input(In::out_proj_weight), ctx.Input(In::out_proj_bias), y.data};
    Heads heads;
    heads.z = z;
    heads.query = query_res;
    heads.key = key_res;
    heads.value = value_res;
    heads.mask = mask;
    heads.mask_batch_stride = m[0] == 1 ? 0 : m.Elements(1, 4);
    heads.mask_head_stride = m[1] == 1 ? 0 : m.Elements(2, 4);
    heads.scores = scores;
    heads.result = result;
    heads.context = context;
    const int64_t scratch = Shape{z.queries, z.keys, int64_t{sizeof(float)}}.Elements();
    heads.row_scores = static_cast<float*>(ctx.Workspace(static_cast<size_t>(scratch)));
    if (keep_prob_ < 1.0) heads.dropout = {keep_prob_, kept.as<const uint8_t>()};
    const DrawnSeed seed = seed_ != 0 || bits || keep_prob_ == 1.0 ? seed_ : DrawSeed(ctx.stream());
    DispatchFloats(kOp, dtype, [&](auto tag) {
      using T = decltype(tag);
      ctx.Launch(kOp, [=, this] {
        SetBits(bits, kept, seed);
        for (int i = 0; i < 3; ++i) {
          projections[i].Run();
          PartHeads(static_cast<const T*>(projections[i].y), parted[i].as<T>(), z, i == 0 ? z.queries : z.keys);
        }
        heads.Run<T>();
        last.Run();
      });
    });
  }

 private:
  static void Expect(const char* name, const TensorView& t, DType dtype, const Shape& shape, const char* suffix = "") {
    NPU_OP_CHECK(kOp, t && t.dtype == dtype && t.shape == shape, "expected ", name, suffix, " ", NameOf(dtype),
                 " of shape ", shape, ", got ", t ? NameOf(t.dtype) : "none", " ", t ? t.shape.ToString() : "");
  }

  // All results are needed during the computation: outputs that are not requested use workspace.
  static TensorView Result(OpContext& ctx, size_t i, DType dtype, const Shape& shape) {
    if (ctx.OutputRequested(i)) return ctx.Output(i, dtype, shape);
    TensorView t{nullptr, dtype, true, shape};
    if (t.elements() > 0) t.data = ctx.Workspace(t.bytes());
    return t;
  }

  // The mask bits of the kept weights: as given, all ones, or drawn.
  void SetBits(const TensorView& given, const TensorView& kept, const DrawnSeed& seed) const {
    uint8_t* to = kept.as<uint8_t>();
    const int64_t bytes = kept.elements();
    if (given) {
      std::copy_n(given.as<const uint8_t>(), bytes, to);
    } else if (keep_prob_ == 1.0) {
      std::fill_n(to, bytes, uint8_t{0xff});
    } else {
      const attention::Dropout draw(keep_prob_, seed, 0);
      ParallelFor(bytes, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float factors[8];
          draw.Fill(8 * i, 8, factors);
          unsigned byte = 0;
          for (unsigned bit = 0; bit < 8; ++bit) byte |= (factors[bit] != 0.0f ? 1u : 0u) << bit;
          to[i] = static_cast<uint8_t>(byte);
        }
      });
    }
  }

  Sizes sizes_;
  double keep_prob_ = 1.0;
  uint64_t seed_ = 0;
  bool softmax_in_float_ = false;
};

NPU_KERNEL(NPUMultiHeadAttention, MultiHeadAttentionKernel);

}  // namespace
}  // namespace npu
