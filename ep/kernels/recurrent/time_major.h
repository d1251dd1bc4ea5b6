// A recurrent layer over time-major inputs [steps, batch, inputs] that returns what each step computes, as torch_npu's
// LSTM and GRU do. The inputs of all steps are multiplied at once, the hidden state at every step.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/float_values.h"
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
  NPU_CHECK(view && view.shape == shape, "[", op, "] expected ", name, " of shape ", shape, ", got ", view.shape);
  NPU_CHECK(view.dtype == dtype, "[", op, "] expected ", name, " of the dtype of input, ", NameOf(dtype), ", got ",
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
  // Of one step, [batch, columns].
  const float* FromInput(int64_t step) const { return from_input_ + step * sizes_.batch * sizes_.columns; }
  // Of `count` sequences from the first on of a hidden state [batch, hidden], until the next call for one of them; for
  // sequences of different threads at the same time. Returns [batch, columns].
  const float* FromHidden(const float* hidden, int64_t first, int64_t count, int64_t step) const {
    Panels(*of_hidden_, sizes_.hidden, hidden_panels_)(hidden + first * sizes_.hidden, count,
                                                       from_hidden_ + first * sizes_.columns, step);
    return from_hidden_;
  }

 private:
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
  Product<float> Panels(const KeptPanels& kept, int64_t rows, const char* panels) const {
    gemm::PackedMatrix packed;
    if (!kept.empty()) {
      packed = kept.matrix(rows, sizes_.columns);
    } else if (rows > 0) {
      packed = {panels, DType::kFloat32, DType::kFloat32, rows, sizes_.columns};
    }
    return {gemm::Matrix::RowMajor(static_cast<const float*>(nullptr), rows, sizes_.columns), packed};
  }

  LayerSizes sizes_;
  const KeptPanels *of_input_, *of_hidden_;
  char *input_panels_, *hidden_panels_;
  float *from_input_, *from_hidden_;
};

}  // namespace npu::recurrent
