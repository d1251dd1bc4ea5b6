// RotaryEmbedding (ai.onnx 23): rotates pairs of the first columns of each head, with cosines and sines of each token
// or of a table of positions. Computed in float and rounded once.
#include <algorithm>
#include <optional>

#include "ep/kernels/indexing/index.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "RotaryEmbedding";

// X as [batch, heads, rows, size] with strides in elements.
struct Heads {
  int64_t batch, heads, rows, size;
  int64_t batch_stride, head_stride, row_stride;
};

struct RotaryTask {
  TensorView x, cosines, sines, y;
  Heads in;
  int64_t rotated;  // columns
  bool interleaved;
  const int64_t* positions;  // [batch, rows], or null: tables have a row for each token
  int64_t table_rows;

  template <class T>
  void Run() const {
    ParallelFor(in.batch * in.rows, RowGrain(in.heads * in.size), [this](int64_t begin, int64_t end) {
      RowScratch cos(rotated / 2), sin(rotated / 2), values(in.size), results(rotated);
      for (int64_t token = begin; token < end; ++token) {
        const int64_t row = positions == nullptr ? token : CheckedIndex(kOp, positions[token], table_rows, token);
        ToFloat(cosines.as<const T>() + row * (rotated / 2), cos.values(), rotated / 2);
        ToFloat(sines.as<const T>() + row * (rotated / 2), sin.values(), rotated / 2);
        const int64_t first = token / in.rows * in.batch_stride + token % in.rows * in.row_stride;
        for (int64_t head = 0; head < in.heads; ++head) {
          const int64_t at = first + head * in.head_stride;
          ToFloat(x.as<const T>() + at, values.values(), in.size);
          Rotate(values.values(), cos.values(), sin.values(), results.values());
          std::copy_n(results.values(), rotated, values.values());
          FromFloat(values.values(), y.as<T>() + at, in.size);
        }
      }
    });
  }

 private:
  void Rotate(const float* x, const float* cos, const float* sin, float* y) const {
    const int64_t half = rotated / 2, step = interleaved ? 2 : 1, way = interleaved ? 1 : half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i * step], b = x[i * step + way];
      y[i * step] = a * cos[i] - b * sin[i];
      y[i * step + way] = b * cos[i] + a * sin[i];
    }
  }
};

class RotaryEmbeddingKernel final : public Kernel {
 public:
  explicit RotaryEmbeddingKernel(const KernelInfo& info)
      : interleaved_(info.attributes.Bool("interleaved")), rotated_(info.attributes.Int("rotary_embedding_dim")) {
    if (info.attributes.Has("num_heads")) heads_ = info.attributes.Int("num_heads");
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), cosines = ctx.Input(1), sines = ctx.Input(2), positions = ctx.Input(3);
    const Heads in = HeadsOf(x.shape);
    const int64_t rotated = rotated_ == 0 ? in.size : rotated_;
    NPU_CHECK(rotated > 0 && rotated <= in.size && rotated % 2 == 0, "[", kOp,
              "] expected rotary_embedding_dim to be even and at most the head size ", in.size, ", got ", rotated);
    NPU_CHECK(cosines.shape == sines.shape && cosines.dtype == x.dtype && sines.dtype == x.dtype, "[", kOp,
              "] expected cos_cache and sin_cache of one shape and of X's type, got ", cosines.shape, " and ",
              sines.shape);
    const Shape& table = cosines.shape;
    if (positions) {
      NPU_CHECK(positions.shape == (Shape{in.batch, in.rows}), "[", kOp, "] expected position_ids of shape ",
                (Shape{in.batch, in.rows}), ", got ", positions.shape);
      NPU_CHECK(table.rank() == 2 && table[1] == rotated / 2, "[", kOp, "] expected tables [positions, ", rotated / 2,
                "], got ", table);
    } else {
      const Shape wanted{in.batch, in.rows, rotated / 2};
      NPU_CHECK(table == wanted, "[", kOp, "] expected tables of shape ", wanted, " without position_ids, got ", table);
    }
    const TensorView y = ctx.Output(0, x.dtype, x.shape);
    if (y.elements() == 0) return;
    const RotaryTask task{
        x, cosines, sines, y, in, rotated, interleaved_, positions.as<const int64_t>(), positions ? table[0] : 0};
    DispatchFloats(kOp, x.dtype, [&](auto type) { ctx.Launch(kOp, [task] { task.Run<decltype(type)>(); }); });
  }

 private:
  Heads HeadsOf(const Shape& x) const {
    NPU_CHECK(x.rank() == 3 || x.rank() == 4, "[", kOp, "] expected X [B, N, S, D] or [B, S, N * D], got shape ", x);
    if (x.rank() == 4) return {x[0], x[1], x[2], x[3], x[1] * x[2] * x[3], x[2] * x[3], x[3]};
    NPU_CHECK(heads_ && *heads_ > 0 && x[2] % *heads_ == 0, "[", kOp,
              "] expected num_heads that divides the last dimension of X ", x, ", got ", heads_.value_or(0));
    const int64_t size = x[2] / *heads_;
    return {x[0], *heads_, x[1], size, x[1] * x[2], size, x[2]};
  }

  bool interleaved_;
  int64_t rotated_;
  std::optional<int64_t> heads_;
};

NPU_ONNX_KERNEL({
    .type = "RotaryEmbedding",
    .since = 23,
    .until = 23,
    .inputs = {Input("X", kFloats), Input("cos_cache", kFloats), Input("sin_cache", kFloats),
               OptionalInput("position_ids", {DType::kInt64})},
    .outputs = {Output("Y", kFloats)},
    .attributes = {IntAttribute("interleaved", 0), IntAttribute("rotary_embedding_dim", 0), IntAttribute("num_heads")},
    .make = MakeKernel<RotaryEmbeddingKernel>,
});

}  // namespace
}  // namespace npu
