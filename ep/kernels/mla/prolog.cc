#include "ep/kernels/mla/prolog.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/normalization/rms_norm.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/cache_rows.h"
#include "ep/kernels/rotary/rotate_row.h"

namespace npu {
namespace {

constexpr std::array<const char*, MlaProlog::kInputs> kNames = {"token_x",
                                                                "weight_dq",
                                                                "weight_uq_qr",
                                                                "weight_uk",
                                                                "weight_dkv_kr",
                                                                "rmsnorm_gamma_cq",
                                                                "rmsnorm_gamma_ckv",
                                                                "rope_sin",
                                                                "rope_cos",
                                                                "cache_index",
                                                                "kv_cache",
                                                                "kr_cache",
                                                                "dequant_scale_x",
                                                                "dequant_scale_w_dq",
                                                                "dequant_scale_w_uq_qr",
                                                                "dequant_scale_w_dkv_kr",
                                                                "quant_scale_ckv",
                                                                "quant_scale_ckr",
                                                                "smooth_scales_cq"};

bool ParseFractal(const char* op, const std::string& mode) {
  NPU_OP_CHECK(op, mode == "PA_BSND" || mode == "PA_NZ", "expected cache_mode PA_BSND or PA_NZ, got '", mode, "'");
  return mode == "PA_NZ";
}

Shape WithBack(Shape lead, std::initializer_list<int64_t> dims) {
  for (const int64_t d : dims) lead.push_back(d);
  return lead;
}

// The int8 scale of a row, NaN if the row contains one; the divisor of a row of zeros is 1.
struct RowScale {
  float scale, divisor;
};
RowScale ScaleOf(const float* row, int64_t n) {
  float most = 0.0f;
  bool ordered = true;
#pragma omp simd reduction(max : most) reduction(&& : ordered)
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::fabs(row[i]));
    ordered = ordered && row[i] == row[i];
  }
  const float scale = ordered ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
  return {scale, scale == 0.0f ? 1.0f : scale};
}

void QuantizeRow(const float* row, float divisor, int8_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToInt8(row[i] / divisor);
}

}  // namespace

// The inputs and sizes of one call.
struct MlaProlog::Call {
  std::array<TensorView, kInputs> in;
  Shape lead;  // token_x's shape without the last axis
  int64_t tokens = 0, he = 0, hcq = 0, heads = 0, d = 0, hckv = 0, dr = 0;

  const TensorView& operator[](Index i) const { return in[i]; }
  bool full() const { return in[kTokenX].dtype == DType::kInt8; }
  bool quantized() const { return in[kWeightUqQr].dtype == DType::kInt8; }
  bool quantizes_query() const { return full() && in[kScaleCkv]; }
  int64_t head_width() const { return d + dr; }
  int64_t pages() const { return in[kKvCache].shape[0]; }
  int64_t page() const { return in[kKvCache].shape[1]; }
};

template <class T>
struct MlaProlog::Task {
  const MlaProlog* kernel;
  Call c;
  T* query;  // the query before quantization; an output, unless query_int8 is
  int8_t* query_int8;
  T* query_rope;
  float* query_scale;
  CacheRows kv, kr;
  int64_t* slots;
  // Scratch, with one row per token.
  float* wide;      // c, u and h in turn, if they are not rounded to T
  T* latent;        // c and cq, in T
  T* up;            // u: whole rows in T, or only the parts [heads, d]
  int8_t* codes;    // cq, quantized
  float* scales;    // one per row of codes
  int32_t* sums;    // of int8 matmuls
  float* kv_scale;  // quant_scale_ckv, repeated for every column of the cache

  void Run() const {
    ResolveSlots();
    kv.CopyFrom(c[kKvCache].data, c.pages());
    kr.CopyFrom(c[kKrCache].data, c.pages());
    if (query_scale && !c.quantizes_query()) *query_scale = 1.0f;
    if (c.tokens == 0) return;
    if (kv_scale) std::fill_n(kv_scale, c.hckv, *c[kScaleCkv].as<float>());
    ProjectDown();
    ProjectUp();
    AbsorbKeys();
    RotateQuery();
    if (c.quantizes_query()) QuantizeQuery();
    StoreLatent();
  }

 private:
  gemm::Matrix Weight(Index i) const {
    const TensorView& w = c[i];
    return gemm::Matrix::RowMajor(w.data, w.shape[0], w.shape[1]);
  }

  // Runs before anything is written, so that a call with an invalid index changes nothing.
  void ResolveSlots() const {
    const int64_t limit = c.pages() * c.page();
    for (int64_t t = 0; t < c.tokens; ++t) {
      const int64_t at = ReadOnce(c[kCacheIndex].template as<int64_t>() + t);
      NPU_OP_CHECK(kernel->op_, at < limit, "expected cache_index in [0, ", limit, "), got ", at);
      slots[t] = at < 0 ? -1 : at;
    }
  }

  template <class F>
  void ForTokens(int64_t width, F f) const {
    ParallelFor(c.tokens, RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) f(t);
    });
  }

  // wide = rows * int8 weight, times one scale per row and one per column.
  void MultiplyIntegers(const int8_t* rows, Index weight, const float* row_scale, const float* column_scale) const {
    const gemm::Matrix b = Weight(weight);
    const int64_t n = b.columns;
    PlainProduct<int8_t>(gemm::Matrix::RowMajor(rows, c.tokens, b.rows), b, sums);
    ForTokens(n, [&](int64_t t) {
      const int32_t* sum = sums + t * n;
      float* out = wide + t * n;
      for (int64_t j = 0; j < n; ++j) out[j] = static_cast<float>(sum[j]) * row_scale[t] * column_scale[j];
    });
  }

  // Computes the query's latent, cq, in T or int8.
  void ProjectDown() const {
    const int64_t n = c.hcq;
    if (c.full()) {
      MultiplyIntegers(c[kTokenX].template as<int8_t>(), kWeightDq, c[kScaleX].template as<float>(),
                       c[kScaleWDq].template as<float>());
    } else {
      kernel->Multiply(c[kWeightUk].dtype, kWeightDq, 0, gemm::Matrix::RowMajor(c[kTokenX].data, c.tokens, c.he),
                       Weight(kWeightDq), {latent, c[kWeightUk].dtype, n});
    }
    const T* gamma = c[kGammaCq].template as<T>();
    if (!c.quantized()) {
      ForTokens(n, [&](int64_t t) { RmsNormRow(latent + t * n, gamma, kernel->epsilon_cq_, latent + t * n, n); });
      return;
    }
    const float* smooth = c[kSmoothCq].template as<float>();
    ParallelFor(c.tokens, RowGrain(n), [&](int64_t begin, int64_t end) {
      RowScratch row(n), weights(n);
      ToFloat(gamma, weights.values(), n);
      for (int64_t t = begin; t < end; ++t) {
        float* v = c.full() ? wide + t * n : row.values();
        if (!c.full()) ToFloat(latent + t * n, v, n);
        RmsNormRow(v, weights.values(), kernel->epsilon_cq_, v, n);
        for (int64_t i = 0; smooth && i < n; ++i) v[i] *= smooth[i];
        const RowScale s = ScaleOf(v, n);
        scales[t] = s.scale;
        QuantizeRow(v, s.divisor, codes + t * n, n);
      }
    });
  }

  // Computes u in T; or in float32, with the part that is multiplied with weight_uk in T.
  void ProjectUp() const {
    const int64_t n = c.heads * c.head_width();
    if (!c.quantized()) {
      kernel->Multiply(c[kWeightUk].dtype, kWeightUqQr, 0, gemm::Matrix::RowMajor(latent, c.tokens, c.hcq),
                       Weight(kWeightUqQr), {up, c[kWeightUk].dtype, n});
      return;
    }
    MultiplyIntegers(codes, kWeightUqQr, scales, c[kScaleWUqQr].template as<float>());
    ForTokens(n, [&](int64_t t) {
      for (int64_t h = 0; h < c.heads; ++h)
        FromFloat(wide + t * n + h * c.head_width(), up + (t * c.heads + h) * c.d, c.d);
    });
  }

  void AbsorbKeys() const {
    if (query == nullptr) return;
    const int64_t head_step = c.quantized() ? c.d : c.head_width();
    for (int64_t h = 0; h < c.heads; ++h) {
      const gemm::Matrix rows{up + h * head_step, c.tokens, c.d, c.heads * head_step, 1};
      const T* weight = c[kWeightUk].template as<T>();
      const gemm::Matrix b = gemm::Matrix::RowMajor(weight ? weight + h * c.d * c.hckv : nullptr, c.d, c.hckv);
      kernel->Multiply(c[kWeightUk].dtype, kWeightUk, h, rows, b,
                       {query + h * c.hckv, c[kWeightUk].dtype, c.heads * c.hckv});
    }
  }

  void RotateQuery() const {
    if (query_rope == nullptr) return;
    const int64_t dr = c.dr, width = c.head_width();
    ParallelFor(c.tokens, RowGrain(c.heads * dr), [&](int64_t begin, int64_t end) {
      RowScratch cosines(dr), sines(dr), pairs(dr), rotated(dr);
      for (int64_t t = begin; t < end; ++t) {
        ToFloat(c[kRopeCos].template as<T>() + t * dr, cosines.values(), dr);
        ToFloat(c[kRopeSin].template as<T>() + t * dr, sines.values(), dr);
        for (int64_t h = 0; h < c.heads; ++h) {
          const int64_t row = t * c.heads + h;
          const float* from = wide + row * width + c.d;
          if (!c.quantized()) {
            ToFloat(up + row * width + c.d, pairs.values(), dr);
            from = pairs.values();
          }
          RotateRow<Pairing::kNeighbours, Pairing::kHalves>(from, cosines.values(), sines.values(), rotated.values(),
                                                            dr);
          FromFloat(rotated.values(), query_rope + row * dr, dr);
        }
      }
    });
  }

  void QuantizeQuery() const {
    if (query == nullptr) return;
    const float cache_scale = *kv_scale;
    ParallelFor(c.tokens * c.heads, RowGrain(c.hckv), [&](int64_t begin, int64_t end) {
      RowScratch row(c.hckv), rope(c.dr);
      for (int64_t i = begin; i < end; ++i) {
        ToFloat(query + i * c.hckv, row.values(), c.hckv);
        const RowScale s = ScaleOf(row.values(), c.hckv);
        if (query_scale) query_scale[i] = s.scale;
        if (query_int8) QuantizeRow(row.values(), s.divisor, query_int8 + i * c.hckv, c.hckv);
        if (!query_rope) continue;
        ToFloat(query_rope + i * c.dr, rope.values(), c.dr);
        for (int64_t j = 0; j < c.dr; ++j) rope.values()[j] = rope.values()[j] * cache_scale / s.divisor;
        FromFloat(rope.values(), query_rope + i * c.dr, c.dr);
      }
    });
  }

  void StoreLatent() const {
    const int64_t n = c.hckv + c.dr;
    if (c.full()) {
      MultiplyIntegers(c[kTokenX].template as<int8_t>(), kWeightDkvKr, c[kScaleX].template as<float>(),
                       c[kScaleWDkvKr].template as<float>());
    } else {
      kernel->Multiply(c[kWeightUk].dtype, kWeightDkvKr, 0, gemm::Matrix::RowMajor(c[kTokenX].data, c.tokens, c.he),
                       Weight(kWeightDkvKr), {wide, DType::kFloat32, n});
    }
    ParallelFor(c.tokens, RowGrain(n), [&](int64_t begin, int64_t end) {
      RowScratch weights(c.hckv), normed(c.hckv), cosines(c.dr), sines(c.dr), rotated(c.dr);
      ToFloat(c[kGammaCkv].template as<T>(), weights.values(), c.hckv);
      for (int64_t t = begin; t < end; ++t) {
        if (slots[t] < 0) continue;
        const float* h = wide + t * n;
        RmsNormRow(h, weights.values(), kernel->epsilon_ckv_, normed.values(), c.hckv);
        kv.Store(slots[t], normed.values());
        ToFloat(c[kRopeCos].template as<T>() + t * c.dr, cosines.values(), c.dr);
        ToFloat(c[kRopeSin].template as<T>() + t * c.dr, sines.values(), c.dr);
        RotateRow<Pairing::kNeighbours, Pairing::kHalves>(h + c.hckv, cosines.values(), sines.values(),
                                                          rotated.values(), c.dr);
        kr.Store(slots[t], rotated.values());
      }
    });
  }
};

MlaProlog::MlaProlog(const KernelInfo& info, const char* op, bool full_quantization)
    : op_(op),
      full_quantization_(full_quantization),
      epsilon_cq_(info.attributes.Float("rmsnorm_epsilon_cq")),
      epsilon_ckv_(info.attributes.Float("rmsnorm_epsilon_ckv")),
      fractal_(ParseFractal(op, info.attributes.String("cache_mode"))) {}

bool MlaProlog::PrePack(size_t input, const TensorView& constant, Stream& stream) {
  const int rank = input == kWeightUk ? 3 : 2;
  if (input < kWeightDq || input > kWeightDkvKr || !gemm::Supports(constant.dtype) || constant.shape.rank() != rank ||
      constant.elements() == 0) {
    return false;
  }
  Packed& packed = packed_[input];
  const Shape& shape = constant.shape;
  const int64_t heads = rank == 3 ? shape[0] : 1, k = shape[rank - 2], n = shape[rank - 1];
  const int64_t bytes = static_cast<int64_t>(BytesFor(constant.dtype, k * n));
  for (int64_t h = 0; h < heads; ++h) {
    packed.heads.push_back(std::make_unique<gemm::PackedWeight>());
    const gemm::Matrix b = gemm::Matrix::RowMajor(constant.as<const char>() + h * bytes, k, n);
    packed.heads.back()->Pack(op_, constant.dtype, b, stream);
  }
  packed.view = constant;
  packed.view.data = nullptr;
  return true;
}

void MlaProlog::Multiply(DType dtype, Index weight, int64_t head, const gemm::Matrix& rows, const gemm::Matrix& b,
                         const gemm::Result& out) const {
  const auto& packed = packed_[weight].heads;
  if (packed.empty()) {
    gemm::Multiply(dtype, rows, b, out);
  } else {
    gemm::Multiply(rows, packed[static_cast<size_t>(head)]->matrix(b), out);
  }
}

void MlaProlog::CheckShapes(const Call& c) const {
  const auto expect = [&](Index i, const Shape& shape) {
    NPU_OP_CHECK(op_, c[i].shape == shape, "expected ", kNames[i], " of shape ", shape, ", got ", c[i].shape);
  };
  expect(kTokenX, WithBack(c.lead, {c.he}));
  expect(kWeightUqQr, Shape{c.hcq, Shape{c.heads, c.head_width()}.Elements()});
  expect(kWeightDkvKr, Shape{c.he, c.hckv + c.dr});
  expect(kGammaCq, Shape{c.hcq});
  expect(kGammaCkv, Shape{c.hckv});
  expect(kRopeSin, WithBack(c.lead, {c.dr}));
  expect(kRopeCos, WithBack(c.lead, {c.dr}));
  expect(kCacheIndex, c.lead);
  for (const auto& [i, width] : {std::pair{kKvCache, c.hckv}, std::pair{kKrCache, c.dr}}) {
    const Shape& shape = c[i].shape;
    NPU_OP_CHECK(op_, shape.rank() == 4 && shape[2] == 1 && shape[3] == width, "expected ", kNames[i],
                 " of shape [blocks, block_size, 1, ", width, "], got ", shape);
    const int64_t d0 = c[i].dtype == DType::kInt8 ? 32 : 16;
    NPU_OP_CHECK(op_, !fractal_ || width % d0 == 0, "expected ", kNames[i], " of a width that is a multiple of ", d0,
                 " in cache_mode PA_NZ, got ", width);
  }
  const auto blocks = [&](Index i) { return Shape{c[i].shape[0], c[i].shape[1]}; };
  NPU_OP_CHECK(op_, blocks(kKvCache) == blocks(kKrCache),
               "expected kv_cache and kr_cache of as many blocks of one size, got ", blocks(kKvCache), " and ",
               blocks(kKrCache));
  const int64_t widths[] = {c.tokens, c.hcq, c.heads * c.head_width(), c.hckv + c.dr, c.hckv, c.dr, c.hcq};
  for (size_t i = kScaleX; i < kInputs; ++i) {
    NPU_OP_CHECK(op_, !c.in[i] || (c.in[i].dtype == DType::kFloat32 && c.in[i].elements() == widths[i - kScaleX]),
                 "expected ", kNames[i], " of ", widths[i - kScaleX], " elements, got ", c.in[i].shape);
  }
}

void MlaProlog::CheckModes(const Call& c) const {
  const bool full = full_quantization_ && c.full(), quantized = full || c.quantized();
  const DType floats = c[kWeightUk].dtype;
  const auto expect = [&](Index i, DType dtype) {
    NPU_OP_CHECK(op_, c[i].dtype == dtype, "expected ", kNames[i], " of dtype ", NameOf(dtype),
                 " in this quantization mode, got ", NameOf(c[i].dtype));
  };
  for (const Index i : {kGammaCq, kGammaCkv, kRopeSin, kRopeCos}) expect(i, floats);
  for (const Index i : {kTokenX, kWeightDq, kWeightDkvKr}) expect(i, full ? DType::kInt8 : floats);
  expect(kWeightUqQr, quantized ? DType::kInt8 : floats);
  expect(kCacheIndex, DType::kInt64);
  expect(kKvCache, c[kScaleCkv] ? DType::kInt8 : floats);
  expect(kKrCache, c[kScaleCkr] ? DType::kInt8 : floats);
  for (const auto& [i, wanted] :
       {std::pair{kScaleX, full}, std::pair{kScaleWDq, full}, std::pair{kScaleWUqQr, quantized},
        std::pair{kScaleWDkvKr, full}, std::pair{kScaleCkr, !full && c[kScaleCkv]}}) {
    NPU_OP_CHECK(op_, static_cast<bool>(c[i]) == wanted, "expected ", wanted ? "" : "no ", kNames[i],
                 " in this quantization mode");
  }
  for (const Index i : {kScaleCkv, kSmoothCq}) {
    NPU_OP_CHECK(op_, quantized || !c[i], "expected no ", kNames[i], " without an int8 weight_uq_qr");
  }
}

void MlaProlog::Compute(OpContext& ctx) const {
  Call c;
  for (size_t i = 0; i < kInputs; ++i) {
    const bool packed = i < packed_.size() && packed_[i].view;
    c.in[i] = packed ? packed_[i].view : ctx.Input(i);
    NPU_OP_CHECK(op_, i >= kScaleX || c.in[i], "expected the tensor ", kNames[i]);
  }
  const Shape &x = c[kTokenX].shape, &dq = c[kWeightDq].shape, &uk = c[kWeightUk].shape, &cos = c[kRopeCos].shape;
  NPU_OP_CHECK(op_, x.rank() == 2 || x.rank() == 3, "expected token_x of shape [T, He] or [B, S, He], got ", x);
  NPU_OP_CHECK(op_, dq.rank() == 2 && uk.rank() == 3 && dq.Elements() > 0 && uk.Elements() > 0,
               "expected weight_dq of shape [He, Hcq] and weight_uk of shape [N, D, Hckv], none empty, got ", dq,
               " and ", uk);
  NPU_OP_CHECK(op_, cos.rank() > 0 && cos.back() > 0 && cos.back() % 2 == 0, "expected rope_cos of an even width, got ",
               cos);
  c.lead = Shape(x.begin(), static_cast<size_t>(x.rank() - 1));
  c.tokens = c.lead.Elements();
  c.he = dq[0];
  c.hcq = dq[1];
  c.heads = uk[0];
  c.d = uk[1];
  c.hckv = uk[2];
  c.dr = cos.back();
  CheckShapes(c);
  CheckModes(c);

  const DType floats = c[kWeightUk].dtype;
  const bool int8_query = c.quantizes_query();
  const TensorView query = ctx.Output(0, int8_query ? DType::kInt8 : floats, WithBack(c.lead, {c.heads, c.hckv}));
  const TensorView query_rope = ctx.Output(1, floats, WithBack(c.lead, {c.heads, c.dr}));
  const TensorView kv_out = ctx.Output(2, c[kKvCache].dtype, c[kKvCache].shape);
  const TensorView kr_out = ctx.Output(3, c[kKrCache].dtype, c[kKrCache].shape);
  TensorView query_scale;
  if (full_quantization_)
    query_scale = ctx.Output(4, DType::kFloat32, int8_query ? Shape{c.tokens, c.heads, 1} : Shape{1});

  const auto scratch = [&](DType dtype, int64_t width) {
    const int64_t elements = Shape{std::max<int64_t>(1, c.tokens), width}.Elements();
    return ctx.Workspace(BytesFor(dtype, elements));
  };
  const int64_t up = c.heads * c.head_width(), down = c.hckv + c.dr;
  const int64_t widest = std::max({c.quantized() ? up : 0, c.full() ? c.hcq : 0, down});
  DispatchFloats(op_, floats, [&](auto tag) {
    using T = decltype(tag);
    Task<T> task{};
    task.kernel = this;
    task.query = int8_query ? static_cast<T*>(scratch(floats, c.heads * c.hckv)) : query.as<T>();
    task.query_int8 = int8_query ? query.as<int8_t>() : nullptr;
    task.query_rope = query_rope.as<T>();
    task.query_scale = query_scale.as<float>();
    task.slots = static_cast<int64_t*>(scratch(DType::kInt64, 1));
    task.wide = static_cast<float*>(scratch(DType::kFloat32, widest));
    task.latent = static_cast<T*>(scratch(floats, c.hcq));
    task.up = static_cast<T*>(scratch(floats, c.quantized() ? c.heads * c.d : up));
    if (c.quantized()) {
      task.codes = static_cast<int8_t*>(scratch(DType::kInt8, c.hcq));
      task.scales = static_cast<float*>(scratch(DType::kFloat32, 1));
      task.sums = static_cast<int32_t*>(scratch(DType::kInt32, widest));
    }
    if (int8_query) task.kv_scale = static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, c.hckv)));
    const float* columns = int8_query ? task.kv_scale : c[kScaleCkv].as<float>();
    task.kv = {kv_out.data, kv_out.dtype, columns, c.hckv, c.page(), fractal_};
    task.kr = {kr_out.data, kr_out.dtype, c[kScaleCkr].as<float>(), c.dr, c.page(), fractal_};
    task.c = c;
    ctx.Launch(op_, [task] { task.Run(); });
  });
}

}  // namespace npu
