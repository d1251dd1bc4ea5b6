// RotateIntoCaches (npu.fused): splits rows of a joined projection into heads of queries, keys and values, rotates
// queries and keys, and writes keys and values into caches. A fusion rule of the provider makes it.
#include <string>

#include "ep/kernels/indexing/slices.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/rotary/head_rotation.h"
#include "ep/kernels/segments.h"

namespace npu {
namespace {

constexpr const char* kOp = "RotateIntoCaches";

struct Task {
  TensorView rows;  // [batch, tokens, (heads + 2 * cached_heads) * size]
  TokenTable cosines, sines;
  TensorView queries;         // [batch, heads, tokens, size]
  TensorView keys, values;    // caches of rows of `size`
  const int64_t* cache_rows;  // [batch, cached_heads, tokens]
  int64_t heads, cached_heads, size;
  bool interleaved;

  int64_t tokens() const { return rows.shape[1]; }
  int64_t all_tokens() const { return rows.shape[0] * tokens(); }
};

template <class T>
class Rotation {
 public:
  explicit Rotation(const Task& task)
      : task_(task), rotation_(kOp, task.cosines, task.sines, task.size, task.interleaved) {}

  // All heads of a token, or only those of queries.
  void Token(int64_t t, bool cached) {
    const int64_t batch = t / task_.tokens(), token = t % task_.tokens();
    rotation_.SetToken(batch, token);
    T* queries = task_.queries.as<T>() + (batch * task_.heads * task_.tokens() + token) * task_.size;
    for (int64_t h = 0; h < task_.heads; ++h) rotation_.Rotate(Head(t, h), queries + h * task_.tokens() * task_.size);
    if (!cached) return;
    for (int64_t h = 0; h < task_.cached_heads; ++h)
      Cache(t, h, (batch * task_.cached_heads + h) * task_.tokens() + token);
  }

  // A head of keys and values whose row of the caches is `task.cache_rows[at]`.
  void CacheAt(int64_t at) {
    const int64_t token = at % task_.tokens(), head = at / task_.tokens() % task_.cached_heads;
    const int64_t batch = at / task_.tokens() / task_.cached_heads;
    rotation_.SetToken(batch, token);
    Cache(batch * task_.tokens() + token, head, at);
  }

 private:
  const T* Head(int64_t t, int64_t head) const {
    return task_.rows.as<const T>() + (t * (task_.heads + 2 * task_.cached_heads) + head) * task_.size;
  }

  void Cache(int64_t t, int64_t head, int64_t at) {
    const int64_t to = task_.cache_rows[at] * task_.size;
    rotation_.Rotate(Head(t, task_.heads + head), task_.keys.as<T>() + to);
    std::copy_n(Head(t, task_.heads + task_.cached_heads + head), task_.size, task_.values.as<T>() + to);
  }

  const Task& task_;
  HeadRotation<T> rotation_;
};

template <class T>
void Run(const Task& task, bool distinct) {
  ParallelFor(task.all_tokens(), RowGrain(task.rows.shape[2]), [&](int64_t begin, int64_t end) {
    Rotation<T> rotation(task);
    for (int64_t t = begin; t < end; ++t) rotation.Token(t, distinct);
  });
  if (distinct) return;
  // Where rows of the caches repeat, they are written in order: the last one wins.
  Rotation<T> rotation(task);
  for (int64_t at = 0; at < task.all_tokens() * task.cached_heads; ++at) rotation.CacheAt(at);
}

class RotateIntoCachesKernel final : public Kernel {
 public:
  explicit RotateIntoCachesKernel(const KernelInfo& info) {
    const std::string mode = info.attributes.String("rotary_mode");
    NPU_OP_CHECK(kOp, mode == "half" || mode == "interleave", "expected rotary_mode half or interleave, got ", mode);
    interleaved_ = mode == "interleave";
  }

  void Compute(OpContext& ctx) const override {
    const TensorView rows = ctx.Input(0), cosines = ctx.Input(1), sines = ctx.Input(2), past_keys = ctx.Input(3),
                     past_values = ctx.Input(4), indices = ctx.Input(5);
    NPU_OP_CHECK(kOp, rows && cosines && sines && past_keys && past_values && indices, "expected six inputs");
    NPU_OP_CHECK(kOp, rows.shape.rank() == 3 && past_keys.shape.rank() == 4,
                 "expected rows [batch, tokens, columns] and caches [batch, heads, capacity, size], got ", rows.shape,
                 " and ", past_keys.shape);
    const int64_t batch = rows.shape[0], tokens = rows.shape[1], cached_heads = past_keys.shape[1],
                  size = past_keys.shape[3];
    NPU_OP_CHECK(
        kOp, past_values.shape == past_keys.shape && rows.dtype == past_keys.dtype && rows.dtype == past_values.dtype,
        "expected caches of one shape and of the dtype of rows, got ", past_keys.shape, " and ", past_values.shape);
    NPU_OP_CHECK(kOp, size > 0 && size % 2 == 0 && rows.shape[2] % size == 0 && rows.shape[2] / size > 2 * cached_heads,
                 "expected rows of whole heads of an even size, got ", rows.shape, " and caches ", past_keys.shape);
    const int64_t heads = rows.shape[2] / size - 2 * cached_heads;
    CheckTable("cos", cosines, batch, tokens, size);
    CheckTable("sin", sines, batch, tokens, size);
    NPU_OP_CHECK(kOp, indices.shape == (Shape{batch, cached_heads, tokens, 3}), "expected indices of shape ",
                 Shape{batch, cached_heads, tokens, 3}, ", got ", indices.shape);

    const TensorView queries = ctx.Output(0, rows.dtype, {batch, heads, tokens, size});
    const TensorView keys = ctx.Output(1, rows.dtype, past_keys.shape);
    const TensorView values = ctx.Output(2, rows.dtype, past_values.shape);
    const int64_t tuples = batch * cached_heads * tokens;
    int64_t* cache_rows =
        tuples == 0 ? nullptr : static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(tuples) * sizeof(int64_t)));
    const Task task{rows,
                    TokenTable(cosines, 2),
                    TokenTable(sines, 2),
                    queries,
                    keys,
                    values,
                    cache_rows,
                    heads,
                    cached_heads,
                    size,
                    interleaved_};
    ctx.Launch(kOp, [task, past_keys, past_values, indices, tuples, cache_rows] {
      const Shape dims(past_keys.shape.begin(), 3);
      // Resolved before anything is written: the caches may be where the indices are.
      const bool distinct = ResolveSlices(kOp, indices, tuples, dims, cache_rows);
      const auto bytes = static_cast<int64_t>(past_keys.bytes());
      if (task.keys.data != past_keys.data) CopyBytes(past_keys.data, task.keys.data, bytes);
      if (task.values.data != past_values.data) CopyBytes(past_values.data, task.values.data, bytes);
      DispatchFloats(kOp, task.rows.dtype, [&](auto tag) { Run<decltype(tag)>(task, distinct); });
    });
  }

 private:
  static void CheckTable(const char* name, const TensorView& table, int64_t batch, int64_t tokens, int64_t size) {
    const Shape& shape = table.shape;
    NPU_OP_CHECK(kOp,
                 shape.rank() == 4 && (shape[0] == 1 || shape[0] == batch) && shape[1] == 1 &&
                     (shape[2] == 1 || shape[2] == tokens) && shape[3] == size,
                 "expected ", name, " that broadcasts to ", Shape{batch, 1, tokens, size}, ", got ", shape);
  }

  bool interleaved_ = false;
};

NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = kOp,
    .inputs = {Input("rows", kFloats), Input("cos", kFloats), Input("sin", kFloats), Input("past_keys", kFloats),
               Input("past_values", kFloats), Input("indices", {DType::kInt32, DType::kInt64})},
    .outputs = {Output("queries", kFloats), Output("keys", kFloats), Output("values", kFloats)},
    .attributes = {StringAttribute("rotary_mode", "half")},
    .make = MakeKernel<RotateIntoCachesKernel>,
});

}  // namespace
}  // namespace npu
