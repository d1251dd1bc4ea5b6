// A recurrent layer over time-major inputs [steps, batch, inputs] that returns what each step computes, as torch_npu's
// LSTM and GRU do. The inputs of all steps are multiplied at once, the hidden state at every step.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/float_values.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/kernels/recurrent/shares.h"
#include "ep/kernels/recurrent/weights.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu::recurrent {

struct LayerSizes {
  int64_t steps, batch, inputs, hidden, columns;  // columns: of all gates

  int64_t state() const { return batch * hidden; }
  bool empty() const { return steps == 0 || batch == 0 || hidden == 0; }
  Shape result() const { return {steps, batch, hidden}; }
};

// Checks an input of a layer whose first input has `dtype`.
inline void CheckLayerTensor(const char* op, const char* name, const TensorView& view, const Shape& shape,
                             DType dtype) {
  NPU_OP_CHECK(op, view && view.shape == shape, "expected ", name, " of shape ", shape, ", got ", view.shape);
  NPU_OP_CHECK(op, view.dtype == dtype, "expected ", name, " of the dtype of input, ", NameOf(dtype), ", got ",
               NameOf(view.dtype));
}

// Output i, [steps, batch, hidden]. One that is not asked for is computed all the same, since a step reads some of
// those of the step before, but only two steps of it are kept: more would take the weights' place in the cache.
class LayerResult {
 public:
  LayerResult(OpContext& ctx, size_t i, DType dtype, const LayerSizes& sizes)
      : asked_(ctx.Output(i, dtype, sizes.result())),
        kept_steps_(asked_ ? sizes.steps : 2),
        step_elements_(sizes.state()),
        results_(ctx, asked_ ? asked_ : RoomFor(ctx, DType::kFloat32, {kept_steps_, sizes.batch, sizes.hidden})) {}

  bool asked() const { return static_cast<bool>(asked_); }
  float* Step(int64_t step) const { return results_.values() + step % kept_steps_ * step_elements_; }
  // In the launch, after the last step.
  void Store(const char* op) const {
    if (asked_) results_.Store(op);
  }

 private:
  TensorView asked_;
  int64_t kept_steps_, step_elements_;
  FloatResults results_;
};

// The outputs 0 .. count - 1.
inline std::vector<LayerResult> LayerResults(OpContext& ctx, size_t count, DType dtype, const LayerSizes& sizes) {
  std::vector<LayerResult> results;
  for (size_t i = 0; i < count; ++i) results.emplace_back(ctx, i, dtype, sizes);
  return results;
}

// The panels of rows of a constant float32 weight, kept when a session is made. Other weights are packed by each call.
class KeptPanels {
 public:
  // Of `rows` rows from row `first` on; false if there is nothing to keep.
  bool Keep(const char* op, const TensorView& constant, int64_t first, int64_t rows, Stream& stream) {
    if (constant.shape.rank() != 2 || constant.dtype != DType::kFloat32 || rows <= 0 || constant.elements() == 0)
      return false;
    const int64_t columns = constant.shape[1];
    const auto part = gemm::Matrix::RowMajor(constant.as<const float>() + first * columns, rows, columns);
    panels_.Pack(op, DType::kFloat32, part, stream);
    weight_ = constant;
    weight_.data = nullptr;
    return true;
  }

  bool empty() const { return !panels_; }
  // The weight of a call, without data if panels were kept.
  TensorView Of(const TensorView& given) const { return empty() ? given : weight_; }
  gemm::PackedMatrix matrix(int64_t rows, int64_t columns) const {
    return panels_.matrix(gemm::Matrix::RowMajor(static_cast<const float*>(nullptr), rows, columns));
  }

 private:
  gemm::PackedWeight panels_;
  TensorView weight_;
};

// The products of the gates in float32. Made before the launch; the kept panels outlive it.
class GateProducts {
 public:
  GateProducts(OpContext& ctx, const LayerSizes& sizes, const KeptPanels& of_input, const KeptPanels& of_hidden)
      : sizes_(sizes),
        of_input_(&of_input),
        of_hidden_(&of_hidden),
        input_panels_(Room(ctx, of_input.empty() ? PanelBytes(sizes.inputs) : 0)),
        hidden_panels_(Room(ctx, of_hidden.empty() ? PanelBytes(sizes.hidden) : 0)),
        from_input_(Floats(ctx, {sizes.steps, sizes.batch, sizes.columns})),
        from_hidden_(Floats(ctx, {sizes.batch, sizes.columns})) {}

  // In the launch: multiplies the inputs; `w` is [inputs, columns] and `u` [hidden, columns], unread if panels were
  // kept.
  void Start(const float* x, const float* w, const float* u) const {
    if (of_input_->empty()) Pack(w, sizes_.inputs, input_panels_);
    if (of_hidden_->empty()) Pack(u, sizes_.hidden, hidden_panels_);
    Panels(*of_input_, sizes_.inputs, input_panels_)(x, sizes_.steps * sizes_.batch, from_input_);
  }
  // The products of hidden units [unit, unit + units) of sequences [first, first + count): for sequence b of these,
  // gate g and unit k those of the input are at from_input[b * input_row + g * input_gate + k], the hidden state's
  // likewise.
  struct Part {
    int64_t first, count, unit, units;
    const float *from_input, *from_hidden;
    int64_t input_row, input_gate, hidden_row, hidden_gate;
  };
  // Calls f(Part) for parts that together are `count` sequences from the first on of a hidden state [batch, hidden] and
  // the input of time `t`, on the pool; for sequences of different threads at the same time. `step`: how often this was
  // called before. Of few sequences, where the gates' columns begin with panels, a part is what one tile of each gate
  // has: f finds the products in the first-level cache, and those of the hidden state are stored nowhere else.
  template <class F>
  void ForEachPart(int64_t t, const float* hidden, int64_t first, int64_t count, int64_t step, const F& f) const {
    const int64_t n = sizes_.hidden, columns = sizes_.columns;
    const float* from_input = from_input_ + (t * sizes_.batch + first) * columns;
    hidden += first * n;
    if (FitsTiles(count)) return ForEachTile(from_input, hidden, first, count, f);
    float* from_hidden = from_hidden_ + first * columns;
    Panels(*of_hidden_, n, hidden_panels_)(hidden, count, from_hidden, step);
    ParallelFor(count, RowGrain(32 * n), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * columns;
      f(Part{first + begin, end - begin, 0, n, from_input + at, from_hidden + at, columns, n, columns, n});
    });
  }

 private:
  static constexpr int64_t kMostGates = 4;
  static constexpr int64_t kWorthAThread = 64 << 10;  // bytes of panels

  // With more sequences than a tile has, the products of the input are too many for the caches in the order of tiles:
  // 64 of each thread took 1.4 times as long. Rows a multiple of a page apart map to the same set of the L1 cache: the
  // GEMM copies them first.
  bool FitsTiles(int64_t count) const {
    constexpr int64_t kPageBytes = 4096;
    return count > 1 && count <= gemm::kSliverRows && sizes_.hidden % gemm::kPanelColumns == 0 &&
           sizes_.hidden * static_cast<int64_t>(sizeof(float)) % kPageBytes != 0;
  }

  template <class F>
  void ForEachTile(const float* from_input, const float* hidden, int64_t first, int64_t rows, const F& f) const {
    constexpr auto kFormat = gemm::PanelFormat::kFloat32;
    constexpr int64_t kUnits = gemm::kPanelColumns, kFloat = sizeof(float);
    const int64_t n = sizes_.hidden, columns = sizes_.columns, gates = columns / n, blocks = n / kUnits;
    const int64_t panel_bytes = gemm::PanelBytes(kFormat, n), tile = rows * kUnits;
    const char* panels = static_cast<const char*>(Packed(*of_hidden_, n, hidden_panels_).data);
    const gemm::TileFunction multiply = gemm::FloatKernel(kFormat)->functions[rows];
    const gemm::Sliver sliver{hidden, n * kFloat, gemm::kChunkBytes};
    ParallelFor(blocks, kWorthAThread / (gates * panel_bytes) + 1, [&](int64_t begin, int64_t end) {
      alignas(64) float tiles[kMostGates * gemm::kSliverRows * kUnits];
      for (int64_t block = begin; block < end; ++block) {
        const float* input = from_input + block * kUnits;
        for (int64_t gate = 0; gate < gates; ++gate) {
          const int64_t next = gate + 1 < gates ? (gate + 1) * blocks + block : std::min(block + 1, blocks - 1);
          // What f reads next, in pieces too short for the processor's own prefetchers, is prefetched as if it was C.
          const gemm::Prefetch prefetch{panels + next * panel_bytes,
                                        gemm::RowBytes(kFormat),
                                        reinterpret_cast<const char*>(input + gate * n),
                                        columns * kFloat,
                                        kUnits * kFloat - 1,
                                        rows};
          multiply(sliver, panels + (gate * blocks + block) * panel_bytes, prefetch, n, tiles + gate * tile, false);
        }
        f(Part{first, rows, block * kUnits, kUnits, input, tiles, columns, n, kUnits, tile});
      }
    });
  }

  static char* Room(OpContext& ctx, size_t bytes) {
    return bytes == 0 ? nullptr : static_cast<char*>(ctx.Workspace(bytes));
  }
  static float* Floats(OpContext& ctx, const Shape& shape) {
    return reinterpret_cast<float*>(Room(ctx, BytesFor(DType::kFloat32, shape.Elements())));
  }
  size_t PanelBytes(int64_t rows) const {
    return rows == 0 ? 0 : gemm::PackedBytes(DType::kFloat32, rows, sizes_.columns);
  }

  void Pack(const float* weight, int64_t rows, char* panels) const {
    if (rows > 0)
      gemm::Pack(DType::kFloat32, gemm::Matrix::RowMajor(weight, rows, sizes_.columns), panels, DType::kFloat32);
  }
  gemm::PackedMatrix Packed(const KeptPanels& kept, int64_t rows, const char* panels) const {
    if (!kept.empty()) return kept.matrix(rows, sizes_.columns);
    if (rows == 0) return {};
    return {panels, DType::kFloat32, DType::kFloat32, rows, sizes_.columns};
  }
  Product<float> Panels(const KeptPanels& kept, int64_t rows, const char* panels) const {
    return {gemm::Matrix::RowMajor(static_cast<const float*>(nullptr), rows, sizes_.columns),
            Packed(kept, rows, panels)};
  }

  LayerSizes sizes_;
  const KeptPanels *of_input_, *of_hidden_;
  char *input_panels_, *hidden_panels_;
  float *from_input_, *from_hidden_;
};

}  // namespace npu::recurrent
