// EmbedLayerNormalization: the layer normalisation of the sum of a word's, a position's and a segment's embedding, and
// the number of ones in each row of a mask. Computed in float32 and rounded once.
#include <algorithm>
#include <utility>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/normalization/moments.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "EmbedLayerNormalization";
constexpr DTypeSet kInt32{DType::kInt32}, kEmbeddings{DType::kFloat32, DType::kFloat16};

enum In { kWords, kSegments, kWordTable, kPositionTable, kSegmentTable, kGamma, kBeta, kMask, kPositions };

// The rows of a table that a list of indices chooses.
struct Lookup {
  const char* name;
  TensorView table, indices;
  int64_t period = 0;  // the indices repeat after so many tokens; without indices, the rows do

  int64_t RowOf(int64_t token) const { return indices ? row()[token % period] : token % period; }
  void Check() const {
    if (indices) return row().CheckFirst(period);
    NPU_OP_CHECK(kOp, period <= table.shape[0], "expected ", name, " in [0, ", table.shape[0], "), got ", period - 1);
  }

 private:
  CheckedNumbers<int32_t> row() const { return {kOp, name, indices.as<const int32_t>(), 0, table.shape[0]}; }
};

struct EmbedTask {
  Lookup lookups[3];
  int lookup_count;
  TensorView gamma, beta, mask, y, counts, sum;
  int64_t tokens, length, n;
  double epsilon;

  template <class T>
  void Run() const {
    for (int i = 0; i < lookup_count && tokens > 0; ++i) lookups[i].Check();
    ParallelFor(tokens, RowGrain(n), [&, this](int64_t begin, int64_t end) {
      RowScratch values(n), more(n);
      float *v = values.values(), *w = more.values();
      for (int64_t token = begin; token < end; ++token) {
        for (int i = 0; i < lookup_count; ++i) {
          const Lookup& lookup = lookups[i];
          ToFloat(lookup.table.as<const T>() + lookup.RowOf(token) * n, i == 0 ? v : w, n);
          if (i == 0) continue;
#pragma omp simd
          for (int64_t k = 0; k < n; ++k) v[k] += w[k];
        }
        if (sum) FromFloat(v, sum.as<T>() + token * n, n);
        const auto load = [v](int64_t first, int64_t) { return v + first; };
        NormalizeRow(n, RowMoments(n, epsilon, load), load, gamma.as<const T>(), beta.as<const T>(),
                     y.as<T>() + token * n);
      }
    });
    if (!counts) return;
    for (int64_t b = 0; b < counts.elements(); ++b) {
      const int32_t* row = mask.as<const int32_t>() + b * length;
      counts.as<int32_t>()[b] = mask ? static_cast<int32_t>(std::count(row, row + length, 1)) : 0;
    }
  }
};

class EmbedKernel final : public Kernel {
 public:
  explicit EmbedKernel(const KernelInfo& info) : epsilon_(info.attributes.Float("epsilon")) {
    NPU_OP_CHECK(kOp, epsilon_ >= 0, "expected an epsilon of 0 or more, got ", epsilon_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView words = ctx.Input(kWords), table = ctx.Input(kWordTable), gamma = ctx.Input(kGamma);
    NPU_OP_CHECK(kOp, words.shape.rank() == 2, "expected input_ids [batch, sequence], got shape ", words.shape);
    NPU_OP_CHECK(kOp, table.shape.rank() == 2 && table.shape[1] > 0,
                 "expected word_embedding [words, hidden], got shape ", table.shape);
    const int64_t batch = words.shape[0], length = words.shape[1], n = table.shape[1];
    EmbedTask task{.lookups = {},
                   .lookup_count = 2,
                   .gamma = gamma,
                   .beta = ctx.Input(kBeta),
                   .mask = ctx.Input(kMask),
                   .y = {},
                   .counts = {},
                   .sum = {},
                   .tokens = batch * length,
                   .length = length,
                   .n = n,
                   .epsilon = epsilon_};
    task.lookups[0] = {"input_ids", table, words, task.tokens};
    task.lookups[1] = Positions(ctx, words.shape);
    const TensorView segments = ctx.Input(kSegments), segment_table = ctx.Input(kSegmentTable);
    NPU_OP_CHECK(kOp, segments.present == segment_table.present,
                 "expected both segment_ids and segment_embedding, or none");
    if (segments) {
      NPU_OP_CHECK(kOp, segments.shape == words.shape, "expected segment_ids of shape ", words.shape, ", got ",
                   segments.shape);
      task.lookups[task.lookup_count++] = {"segment_ids", segment_table, segments, task.tokens};
    }
    for (const Lookup& lookup : task.lookups)
      NPU_OP_CHECK(kOp,
                   !lookup.table || (lookup.table.shape.rank() == 2 && lookup.table.shape[1] == n &&
                                     lookup.table.dtype == table.dtype),
                   "expected the embedding of ", lookup.name, " to have ", n, " columns of ", NameOf(table.dtype),
                   ", got ", NameOf(lookup.table.dtype), " ", lookup.table.shape);
    const Shape row{n};
    for (const auto& [name, view] : {std::pair{"gamma", task.gamma}, std::pair{"beta", task.beta}})
      NPU_OP_CHECK(kOp, view.shape == row && view.dtype == table.dtype, "expected ", name, " of ", NameOf(table.dtype),
                   " ", row, ", got ", NameOf(view.dtype), " ", view.shape);
    NPU_OP_CHECK(kOp, !task.mask || task.mask.shape == words.shape, "expected mask of shape ", words.shape, ", got ",
                 task.mask.shape);
    const Shape hidden{batch, length, n};
    task.y = ctx.Output(0, table.dtype, hidden);
    task.counts = ctx.Output(1, DType::kInt32, Shape{batch});
    task.sum = ctx.Output(2, table.dtype, hidden);
    DispatchFloats(kOp, table.dtype, [&](auto type) { ctx.Launch(kOp, [task] { task.Run<decltype(type)>(); }); });
  }

 private:
  static Lookup Positions(OpContext& ctx, const Shape& words) {
    const TensorView given = ctx.Input(kPositions);
    const Shape one{1, words[1]};
    NPU_OP_CHECK(kOp, !given || given.shape == words || given.shape == one, "expected position_ids of shape ", words,
                 " or ", one, ", got ", given.shape);
    return {"position_ids", ctx.Input(kPositionTable), given, given ? given.elements() : words[1]};
  }

  double epsilon_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("input_ids", kInt32), OptionalInput("segment_ids", kInt32), Input("word_embedding", kEmbeddings),
               Input("position_embedding", kEmbeddings), OptionalInput("segment_embedding", kEmbeddings),
               Input("gamma", kEmbeddings), Input("beta", kEmbeddings), OptionalInput("mask", kInt32),
               OptionalInput("position_ids", kInt32)},
    .outputs = {Output("output", kEmbeddings), OptionalOutput("mask_index", kInt32),
                OptionalOutput("embedding_sum", kEmbeddings)},
    .attributes = {FloatAttribute("epsilon", 1e-12), IntAttribute("mask_index_type", 0)},
    .make = MakeKernel<EmbedKernel>,
}));

}  // namespace
}  // namespace npu
