// PagedSelfAttention (npu.fused): splits rows of a joined projection into heads of queries, keys and values, rotates
// queries and keys, writes keys and values into the pages of a cache, and attends to it. The exporter makes it. Rows of
// a cache of int8 end with their scale, as ScaledRows writes them.
#include <algorithm>
#include <utility>
#include <vector>

#include "ep/kernels/attention/inference/call.h"
#include "ep/kernels/attention/inference/paged_rows.h"
#include "ep/kernels/indexing/slices.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/scaled_row.h"
#include "ep/kernels/rotary/head_rotation.h"
#include "ep/kernels/segments.h"

namespace npu {
namespace {

using attention::InferenceInputs;
using attention::InferenceLauncher;

constexpr const char* kOp = "PagedSelfAttention";

enum In { kRows, kCos, kSin, kPastKeys, kPastValues, kSlots, kMask, kQueryEnds, kKeyLengths, kTable };
enum Out { kAttended, kKeys, kValues };

// What is done before the attention.
struct Preparation {
  TensorView rows;  // [1, tokens, (heads + 2 * cached_heads) * size]
  TokenTable cosines, sines;
  TensorView past_keys, past_values, keys, values;  // [pages, page rows, cached_heads, size or size + 4 bytes]
  TensorView slots;                                 // [tokens, 2]: page, and row in it
  TensorView queries;                               // [tokens, heads, size], rotated
  int64_t* cache_rows;                              // [tokens]
  int64_t heads, cached_heads, size;
  bool interleaved;

  void Run() const {
    // Resolved before anything is written: the caches may be where the slots are.
    ResolveSlices(kOp, slots, tokens(), Shape(keys.shape.begin(), 2), cache_rows);
    for (const auto& [from, to] : {std::pair(&past_keys, &keys), std::pair(&past_values, &values)})
      if (from->data != to->data) CopyBytes(from->data, to->data, static_cast<int64_t>(from->bytes()));
    const int64_t grain = RowGrain(rows.shape[2]);
    const int64_t parts = std::clamp<int64_t>(tokens() / grain, 1, NumThreads());
    DispatchFloats(kOp, rows.dtype, [&](auto tag) {
      ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) RunPart<decltype(tag)>(part, parts);
      });
    });
  }

 private:
  int64_t tokens() const { return rows.shape[1]; }

  // The queries of a range of tokens, and the keys and values of some rows of the cache. A row that several tokens name
  // belongs to one part, so that the last token's stays.
  template <class T>
  void RunPart(int64_t part, int64_t parts) const {
    HeadRotation<T> rotation(kOp, cosines, sines, size, interleaved);
    SymmetricRows<T> rounding(nullptr, size);
    std::vector<T> rotated(static_cast<size_t>(size));
    const int64_t begin = tokens() * part / parts, end = tokens() * (part + 1) / parts;
    const int64_t query_row = heads * size, cache_row = cached_heads * size;
    for (int64_t t = 0; t < tokens(); ++t) {
      const bool queried = t >= begin && t < end, cached = cache_rows[t] % parts == part;
      if (!queried && !cached) continue;
      rotation.SetToken(0, t);
      const T* row = rows.as<const T>() + t * (query_row + 2 * cache_row);
      if (queried) {
        T* to = queries.as<T>() + t * query_row;
        for (int64_t at = 0; at < query_row; at += size) rotation.Rotate(row + at, to + at);
      }
      if (cached && keys.dtype == DType::kInt8) {
        for (int64_t head = 0; head < cached_heads; ++head) {
          const T* from = row + query_row + head * size;
          rotation.Rotate(from, rotated.data());
          const int64_t to = (cache_rows[t] * cached_heads + head) * (size + kScaleBytes);
          StoreScaled(rounding, rotated.data(), keys.as<int8_t>() + to);
          StoreScaled(rounding, from + cache_row, values.as<int8_t>() + to);
        }
      } else if (cached) {
        T* to = keys.as<T>() + cache_rows[t] * cache_row;
        for (int64_t at = 0; at < cache_row; at += size) rotation.Rotate(row + query_row + at, to + at);
        std::copy_n(row + query_row + cache_row, cache_row, values.as<T>() + cache_rows[t] * cache_row);
      }
    }
  }
};

class PagedSelfAttentionKernel final : public Kernel {
 public:
  explicit PagedSelfAttentionKernel(const KernelInfo& info)
      : launcher_(info, attention::PagedRowAttributes(kOp, info.attributes)) {
    const std::string mode = info.attributes.String("rotary_mode");
    NPU_OP_CHECK(kOp, mode == "half" || mode == "interleave", "expected rotary_mode half or interleave, got ", mode);
    interleaved_ = mode == "interleave";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView rows = ctx.Input(kRows), past_keys = ctx.Input(kPastKeys), past_values = ctx.Input(kPastValues);
    NPU_OP_CHECK(kOp, rows && past_keys && past_values, "expected the tensors rows, past_keys and past_values");
    const Shape &shape = rows.shape, &pages = past_keys.shape;
    NPU_OP_CHECK(kOp, shape.rank() == 3 && shape[0] == 1, "expected rows of shape [1, tokens, columns], got ", shape);
    const int64_t heads = launcher_.attributes().heads, cached_heads = launcher_.attributes().key_heads;
    const DType cached = past_keys.dtype;
    const bool scaled = cached == DType::kInt8;
    const int64_t tokens = shape[1], size = pages.rank() == 4 ? pages[3] - (scaled ? kScaleBytes : 0) : 0;
    NPU_OP_CHECK(kOp, pages.rank() == 4 && pages[2] == cached_heads && size > 0 && size % (scaled ? 4 : 2) == 0,
                 "expected past_keys of shape [pages, page rows, ", cached_heads, ", ",
                 scaled ? "a multiple of 4, and a scale of 4 bytes" : "an even size", "], got ", pages);
    NPU_OP_CHECK(kOp, past_values.shape == pages && (scaled || cached == rows.dtype) && past_values.dtype == cached,
                 "expected past_keys and past_values of one shape and of int8 or the dtype of rows, got ", pages,
                 " and ", past_values.shape);
    NPU_OP_CHECK(kOp, shape[2] == (heads + 2 * cached_heads) * size, "expected rows of ", heads, " heads and twice ",
                 cached_heads, " of size ", size, ", got ", shape);
    const TensorView slots = ctx.Input(kSlots);
    NPU_OP_CHECK(kOp, slots.shape == (Shape{tokens, 2}), "expected slots of shape ", Shape{tokens, 2}, ", got ",
                 slots.shape);
    const auto scratch = [&](size_t bytes) { return bytes == 0 ? nullptr : ctx.Workspace(bytes); };

    TensorView queries = rows;
    queries.shape = {tokens, heads, size};
    queries.data = scratch(queries.bytes());
    const TensorView keys = ctx.Output(kKeys, cached, pages), values = ctx.Output(kValues, cached, pages);
    const Preparation before{rows,
                             Table(ctx, kCos, "cos", tokens, size),
                             Table(ctx, kSin, "sin", tokens, size),
                             past_keys,
                             past_values,
                             keys,
                             values,
                             slots,
                             queries,
                             static_cast<int64_t*>(scratch(BytesFor(DType::kInt64, tokens))),
                             heads,
                             cached_heads,
                             size,
                             interleaved_};
    InferenceInputs in;
    in.query = queries;
    in.key = keys;
    in.value = values;
    in.key.shape = in.value.shape = {pages[0], pages[1], cached_heads * pages[3]};
    in.scaled_rows = scaled;
    in.atten_mask = ctx.Input(kMask);
    in.lengths = ctx.Input(kQueryEnds);
    in.key_lengths = ctx.Input(kKeyLengths);
    in.block_table = ctx.Input(kTable);
    const auto allocate = [&](DType dtype, const attention::InferenceCall&) {
      return InferenceLauncher::Outputs{ctx.Output(kAttended, dtype, {1, tokens, heads * size}), {}};
    };
    launcher_.Launch(ctx, std::move(in), allocate, [before] { before.Run(); });
  }

 private:
  static TokenTable Table(OpContext& ctx, size_t input, const char* name, int64_t tokens, int64_t size) {
    const TensorView table = ctx.Input(input);
    const Shape& shape = table.shape;
    NPU_OP_CHECK(kOp,
                 table && shape.rank() == 4 && shape[0] == 1 && (shape[1] == 1 || shape[1] == tokens) &&
                     shape[2] == 1 && shape[3] == size,
                 "expected ", name, " that broadcasts to ", Shape{1, tokens, 1, size}, ", got ", shape);
    return {table, 1};
  }

  InferenceLauncher launcher_;
  bool interleaved_ = false;
};

constexpr DTypeSet kCached = kFloats | DTypeSet{DType::kInt8};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("rows", kFloats), Input("cos", kFloats), Input("sin", kFloats), Input("past_keys", kCached),
               Input("past_values", kCached), Input("slots", {DType::kInt32, DType::kInt64}),
               Input("atten_mask", {DType::kBool}), attention::LateLengths("query_ends"),
               attention::LateLengths("key_lengths"), Input("block_table", {DType::kInt32})},
    .outputs = {Output("attended", kFloats), Output("keys", kCached), Output("values", kCached)},
    .attributes = {RequiredInt("num_heads"), RequiredInt("num_key_value_heads"), FloatAttribute("scale", 1.0),
                   RequiredInt("block_size"), IntAttribute("sparse_mode", 3), IntAttribute("pre_tokens", INT32_MAX),
                   IntAttribute("next_tokens", INT32_MAX), StringAttribute("rotary_mode", "half")},
    .may_alias = {{kPastKeys, kKeys}, {kPastValues, kValues}},
    .make = MakeKernel<PagedSelfAttentionKernel>,
});

}  // namespace
}  // namespace npu
