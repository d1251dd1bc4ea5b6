// npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, k_cache, ckv_cache, k_rope_scale?, c_kv_scale?, k_rope_offset?,
// c_kv_offset?, v?; epsilon, cache_mode, is_output_kv) -> k_cache, ckv_cache, k_embed, y. The semantics are in
// npu_kv_rmsnorm_rope_cache.py.
#include "contrib_ops/rope/npu_kv_rmsnorm_rope_cache.h"

#include <algorithm>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/normalization/rms_norm.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/cache_rows.h"
#include "ep/kernels/rotary/rotate_row.h"
#include "ep/kernels/rotary/table_rows.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUKvRmsnormRopeCache::In;
using Out = nodes::NPUKvRmsnormRopeCache::Out;

constexpr const char* kOp = "npu_kv_rmsnorm_rope_cache";

struct CacheMode {
  bool batched;   // [B, 1, length, width] addressed inside the batch row, instead of [blocks, block_size, 1, width]
  bool by_block;  // one index per block of tokens
  bool fractal;   // a block is stored as [width / d0, block_size, d0]
};

CacheMode ParseCacheMode(const std::string& mode) {
  if (mode == "Norm") return {true, false, false};
  if (mode == "PA" || mode == "PA_BNSD") return {false, false, false};
  if (mode == "PA_NZ") return {false, false, true};
  if (mode == "PA_BLK_BNSD") return {false, true, false};
  if (mode == "PA_BLK_NZ") return {false, true, true};
  Fail(ErrorCode::kInvalidArgument, "[", kOp,
       "] expected cache_mode Norm, PA, PA_BNSD, PA_NZ, PA_BLK_BNSD or PA_BLK_NZ, got '", mode, "'");
}

template <class T>
struct Task {
  const T *kv, *gamma, *cos, *sin, *v;
  T *k_embed, *y;
  const int64_t* index;
  int64_t* slots;  // the cache row of each token; -1: not stored
  const void *k_source, *ckv_source;
  CacheRows k, ckv;
  int64_t batch, length, pages;
  int64_t norm, rope;  // widths of the normalised and of the rotated part of a row of kv
  double epsilon;
  CacheMode mode;
  Shape cos_shape, sin_shape;

  int64_t tokens() const { return batch * length; }

  void Run() const {
    ResolveSlots();
    k.CopyFrom(k_source, pages);
    ckv.CopyFrom(ckv_source, pages);
    ParallelFor(tokens(), RowGrain(k.width + ckv.width), [&](int64_t begin, int64_t end) { Rows(begin, end); });
  }

 private:
  void ResolveSlots() const {
    const int64_t per_row = (length + k.page - 1) / std::max<int64_t>(k.page, 1);
    for (int64_t t = 0; t < tokens(); ++t) {
      const int64_t b = t / length, s = t % length;
      const int64_t at = ReadOnce(index + (mode.by_block ? b * per_row + s / k.page : t));
      const int64_t limit = mode.batched ? k.page : pages * k.page;
      if (!mode.batched && at < 0) {
        slots[t] = -1;
        continue;
      }
      NPU_OP_CHECK(kOp, at >= 0 && at < limit, "expected index in [0, ", limit, "), got ", at);
      slots[t] = mode.batched ? b * k.page + at : mode.by_block ? at / k.page * k.page + s % k.page : at;
    }
  }

  void Rows(int64_t begin, int64_t end) const {
    const int64_t width = v ? norm : norm + rope;
    const Shape token_shape{batch, 1, length, rope};
    TableRows<T> cosines(cos, cos_shape, token_shape), sines(sin, sin_shape, token_shape);
    cosines.Seek(begin);
    sines.Seek(begin);
    RowScratch weights(norm), row(width), normed(norm), keys(k.width), values(ckv.width);
    ToFloat(gamma, weights.values(), norm);
    for (int64_t t = begin; t < end; ++t) {
      ToFloat(kv + t * width, row.values(), width);
      RmsNormRow(row.values(), weights.values(), epsilon, normed.values(), norm);
      // With v, the normalised row is the key, starting with its rotated part; without, the rotated part follows it.
      const float* pairs = v ? normed.values() : row.values() + norm;
      RotateRow<Pairing::kNeighbours, Pairing::kHalves>(pairs, cosines.Row(), sines.Row(), keys.values(), rope);
      if (v) {
        std::copy(normed.values() + rope, normed.values() + norm, keys.values() + rope);
        ToFloat(v + t * ckv.width, values.values(), ckv.width);
      } else {
        std::copy_n(normed.values(), norm, values.values());
      }
      if (k_embed) FromFloat(keys.values(), k_embed + t * k.width, k.width);
      if (y) FromFloat(values.values(), y + t * ckv.width, ckv.width);
      if (slots[t] >= 0) {
        k.Store(slots[t], keys.values());
        ckv.Store(slots[t], values.values());
      }
      cosines.Next();
      sines.Next();
    }
  }
};

class KvRmsnormRopeCacheKernel final : public Kernel {
 public:
  explicit KvRmsnormRopeCacheKernel(const KernelInfo& info)
      : epsilon_(info.attributes.Float("epsilon")), mode_(ParseCacheMode(info.attributes.String("cache_mode"))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView kv = ctx.Input(In::kv), gamma = ctx.Input(In::gamma), cos = ctx.Input(In::cos),
                     sin = ctx.Input(In::sin);
    const TensorView index = ctx.Input(In::index), k_cache = ctx.Input(In::k_cache),
                     ckv_cache = ctx.Input(In::ckv_cache);
    const TensorView k_scale = ctx.Input(In::k_rope_scale), ckv_scale = ctx.Input(In::c_kv_scale), v = ctx.Input(In::v);
    NPU_OP_CHECK(kOp, kv && gamma && cos && sin && index && k_cache && ckv_cache,
                 "expected the tensors kv, gamma, cos, sin, index, k_cache and ckv_cache");
    NPU_OP_CHECK(kOp, !ctx.Input(In::k_rope_offset) && !ctx.Input(In::c_kv_offset),
                 "expected no k_rope_offset and no c_kv_offset: asymmetric quantization is not defined");
    NPU_OP_CHECK(kOp, kv.shape.rank() == 4 && kv.shape[1] == 1, "expected kv of shape [B, 1, S, D], got ", kv.shape);
    NPU_OP_CHECK(kOp, gamma.shape.rank() == 1, "expected gamma of rank 1, got ", gamma.shape);
    NPU_OP_CHECK(kOp, cos.shape.rank() == 4 && sin.shape.rank() == 4, "expected cos and sin of rank 4, got ", cos.shape,
                 " and ", sin.shape);
    const int64_t b = kv.shape[0], s = kv.shape[2], norm = gamma.shape[0], rope = cos.shape[3];
    const int64_t width = v ? norm : norm + rope;
    NPU_OP_CHECK(kOp, kv.shape[3] == width && rope % 2 == 0 && rope <= width, "expected kv of ",
                 v ? "gamma's width, at least cos's" : "gamma's and cos's width together", ", cos's even, got kv ",
                 kv.shape, ", gamma ", gamma.shape, " and cos ", cos.shape);
    const Shape tokens{b, 1, s, rope};
    NPU_OP_CHECK(kOp, BroadcastRows::Fits(cos.shape, tokens) && BroadcastRows::Fits(sin.shape, tokens),
                 "expected cos and sin that broadcast to ", tokens, ", got ", cos.shape, " and ", sin.shape);
    NPU_OP_CHECK(kOp, !v || (v.shape.rank() == 4 && v.shape[0] == b && v.shape[1] == 1 && v.shape[2] == s),
                 "expected v of shape [", b, ", 1, ", s, ", D], got ", v.shape);
    for (const auto& [name, t] :
         {std::pair{"gamma", &gamma}, std::pair{"cos", &cos}, std::pair{"sin", &sin}, std::pair{"v", &v}}) {
      NPU_OP_CHECK(kOp, !*t || t->dtype == kv.dtype, "expected ", name, " of kv's dtype ", NameOf(kv.dtype), ", got ",
                   NameOf(t->dtype));
    }
    NPU_OP_CHECK(kOp, static_cast<bool>(k_scale) == static_cast<bool>(ckv_scale),
                 "expected k_rope_scale and c_kv_scale both or neither");
    CheckCache("k_cache", k_cache, v ? width : rope, "k_rope_scale", k_scale, kv);
    CheckCache("ckv_cache", ckv_cache, v ? v.shape[3] : norm, "c_kv_scale", ckv_scale, kv);
    const int page_axis = mode_.batched ? 2 : 1;
    const int64_t pages = k_cache.shape[0], page = k_cache.shape[page_axis];
    NPU_OP_CHECK(kOp, ckv_cache.shape[0] == pages && ckv_cache.shape[page_axis] == page,
                 "expected k_cache and ckv_cache of as many rows, got ", k_cache.shape, " and ", ckv_cache.shape);
    NPU_OP_CHECK(kOp, !mode_.by_block || page > 0 || s == 0, "expected blocks of at least one row, got ",
                 k_cache.shape);
    const int64_t indices = mode_.by_block && page > 0 ? b * ((s + page - 1) / page) : b * s;
    NPU_OP_CHECK(kOp, index.dtype == DType::kInt64 && index.elements() == indices, "expected index of int64 with ",
                 indices, " elements, got ", NameOf(index.dtype), " ", index.shape);

    const TensorView k_out = ctx.Output(Out::k_cache_out, k_cache.dtype, k_cache.shape);
    const TensorView ckv_out = ctx.Output(Out::ckv_cache_out, ckv_cache.dtype, ckv_cache.shape);
    const TensorView k_embed = ctx.Output(Out::k_embed, kv.dtype, Shape{b, 1, s, v ? width : rope});
    const TensorView y = ctx.Output(Out::y, kv.dtype, Shape{b, 1, s, v ? v.shape[3] : norm});
    int64_t* slots = static_cast<int64_t*>(
        ctx.Workspace(static_cast<size_t>(std::max<int64_t>(1, (Shape{b, s}).Elements())) * sizeof(int64_t)));
    DispatchFloats(kOp, kv.dtype, [&](auto tag) {
      using T = decltype(tag);
      const CacheRows k{k_out.data, k_cache.dtype, k_scale.as<float>(), k_cache.shape[3], page, mode_.fractal};
      const CacheRows ckv{ckv_out.data, ckv_cache.dtype, ckv_scale.as<float>(), ckv_cache.shape[3],
                          page,         mode_.fractal};
      const Task<T> task{kv.as<T>(),
                         gamma.as<T>(),
                         cos.as<T>(),
                         sin.as<T>(),
                         v.as<T>(),
                         k_embed.as<T>(),
                         y.as<T>(),
                         index.as<int64_t>(),
                         slots,
                         k_cache.data,
                         ckv_cache.data,
                         k,
                         ckv,
                         b,
                         s,
                         pages,
                         norm,
                         rope,
                         epsilon_,
                         mode_,
                         cos.shape,
                         sin.shape};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }

 private:
  void CheckCache(const char* name, const TensorView& cache, int64_t width, const char* scale_name,
                  const TensorView& scale, const TensorView& kv) const {
    const int one = mode_.batched ? 1 : 2;
    NPU_OP_CHECK(kOp,
                 cache.shape.rank() == 4 && cache.shape[one] == 1 && cache.shape[3] == width &&
                     (!mode_.batched || cache.shape[0] == kv.shape[0]),
                 "expected ", name, " of shape ", mode_.batched ? "[B, 1, length, " : "[blocks, block_size, 1, ", width,
                 "], got ", cache.shape);
    NPU_OP_CHECK(kOp, scale || cache.dtype != DType::kInt8, "expected ", name, " of a float type without ", scale_name,
                 ", got ", NameOf(cache.dtype));
    NPU_OP_CHECK(kOp, !scale || cache.dtype == DType::kInt8, "expected ", name,
                 " of int8, because it is quantized, got ", NameOf(cache.dtype));
    NPU_OP_CHECK(kOp, !scale || (scale.dtype == DType::kFloat32 && scale.shape == Shape{width}), "expected ",
                 scale_name, " of float32 and shape ", Shape{width}, ", got ", NameOf(scale.dtype), " ", scale.shape);
    const int64_t d0 = scale ? 32 : 16;
    NPU_OP_CHECK(kOp, !mode_.fractal || width % d0 == 0, "expected ", name, " of a width that is a multiple of ", d0,
                 " in an NZ cache_mode, got ", width);
  }

  double epsilon_;
  CacheMode mode_;
};

NPU_KERNEL(NPUKvRmsnormRopeCache, KvRmsnormRopeCacheKernel);

}  // namespace
}  // namespace npu
