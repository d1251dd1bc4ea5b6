// Gemm (ai.onnx 7, 9, 11, 13): Y = alpha * A' * B' + beta * C.
#include <cmath>
#include <limits>

#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/onnx_def.h"

namespace npu {

namespace {

gemm::Matrix View(const TensorView& t, bool transposed) {
  const gemm::Matrix m = gemm::Matrix::RowMajor(t.data, t.shape[0], t.shape[1]);
  return transposed ? m.Transposed() : m;
}

struct BroadcastStrides {
  int64_t row = 0, column = 0;
};

// The strides of C, which must broadcast to [m, n] without changing it.
BroadcastStrides StridesOfC(const Shape& c, int64_t m, int64_t n) {
  const int rank = c.rank();
  const int64_t columns = rank >= 1 ? c[rank - 1] : 1, rows = rank == 2 ? c[0] : 1;
  NPU_CHECK(rank <= 2 && (columns == n || columns == 1) && (rows == m || rows == 1),
            "[Gemm] expected C to broadcast to [", m, ", ", n, "], got ", c);
  return {rows == 1 ? 0 : columns, columns == 1 ? 0 : 1};
}

// x * factor in T: exact for a factor of 1; otherwise in double, and for integers toward zero within T's range.
template <class T>
T Scaled(T x, double factor) {
  if (factor == 1.0) return x;
  const double y = static_cast<double>(x) * factor;
  if constexpr (std::is_integral_v<T>) {
    // The limits as doubles; the upper one may round up to a value that T cannot represent.
    if (std::isnan(y)) return 0;
    if (y <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (y >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  }
  return static_cast<T>(y);
}

class GemmKernel : public Kernel, public SharedMatrixReader {
 public:
  explicit GemmKernel(const KernelInfo& info)
      : alpha_(static_cast<float>(info.attributes.Float("alpha"))),
        beta_(static_cast<float>(info.attributes.Float("beta"))),
        trans_a_(info.attributes.Bool("transA")),
        trans_b_(info.attributes.Bool("transB")),
        weight_(info.float32_products) {}

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1 || !gemm::Supports(constant.dtype) || constant.shape.rank() != 2) return false;
    weight_.Pack("Gemm", constant.dtype, View(constant, trans_b_), stream);
    weight_view_ = constant;
    weight_view_.data = nullptr;
    return true;
  }

  Panels PanelsOf(size_t input, const TensorView& b) const override {
    return input == 1 && trans_b_ ? weight_.PanelsOf(b) : Panels::kNo;
  }
  void UsePanels(size_t, const TensorView& b, bool reorder, Stream& stream) override {
    weight_.UsePanels("Gemm", b, reorder, stream);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView a = ctx.Input(0);
    const TensorView b = weight_ ? weight_view_ : ctx.Input(1);
    const TensorView c = ctx.Input(2);
    NPU_CHECK(a && b, "[Gemm] expected inputs A and B");
    NPU_CHECK(a.dtype == b.dtype && (!c || c.dtype == a.dtype), "[Gemm] expected inputs of one type, got ",
              NameOf(a.dtype), ", ", NameOf(b.dtype), c ? Concat(" and ", NameOf(c.dtype)) : "");
    NPU_CHECK(a.shape.rank() == 2 && b.shape.rank() == 2, "[Gemm] expected matrices A and B, got ", a.shape, " and ",
              b.shape);
    const gemm::Matrix left = View(a, trans_a_), right = View(b, trans_b_);
    NPU_CHECK(left.columns == right.rows, "[Gemm] expected as many columns of A as rows of B, got ", a.shape,
              trans_a_ ? " transposed and " : " and ", b.shape, trans_b_ ? " transposed" : "");
    const int64_t m = left.rows, n = right.columns;
    // ONNX: with a beta of 0, C is ignored, whatever it holds.
    const bool add = c && beta_ != 0.0f;
    const BroadcastStrides strides = c ? StridesOfC(c.shape, m, n) : BroadcastStrides{};
    const TensorView y = ctx.Output(0, a.dtype, Shape{m, n});
    if (!y || y.elements() == 0) return;
    const gemm::Addend addend{add ? c.data : nullptr, a.dtype, strides.row, strides.column, beta_};
    ctx.Launch("Gemm", [this, left, right, y, addend] {
      if (gemm::Supports(y.dtype)) {
        const gemm::Result result{y.data, y.dtype, right.columns};
        if (weight_.has_panels()) {
          gemm::Multiply(left, weight_.matrix(right), result, {alpha_, addend});
        } else {
          gemm::Multiply(y.dtype, left, right, result, {alpha_, addend});
        }
      } else {
        DispatchPlain("Gemm", y.dtype, [&](auto type) { RunPlain<decltype(type)>(left, right, y, addend); });
      }
    });
  }

 private:
  template <class T>
  void RunPlain(const gemm::Matrix& a, const gemm::Matrix& b, const TensorView& y, const gemm::Addend& addend) const {
    T* out = y.as<T>();
    PlainProduct<T>(a, b, out);
    const T* c = static_cast<const T*>(addend.data);
    for (int64_t i = 0; i < a.rows; ++i) {
      for (int64_t j = 0; j < b.columns; ++j, ++out) {
        T value = Scaled(*out, alpha_);
        if (c) {
          using W = Wrapping<T>;
          const T added = Scaled(c[i * addend.row_stride + j * addend.column_stride], addend.scale);
          value = static_cast<T>(static_cast<W>(value) + static_cast<W>(added));
        }
        *out = value;
      }
    }
  }

  float alpha_, beta_;
  bool trans_a_, trans_b_;
  gemm::PackedWeight weight_;
  TensorView weight_view_;  // type and shape
};

NPU_ONNX_KERNEL({
    .type = "Gemm",
    .since = 7,
    .until = 13,
    .inputs = {Input("A", kMatrixTypes), Input("B", kMatrixTypes), OptionalInput("C", kMatrixTypes)},
    .outputs = {Output("Y", kMatrixTypes)},
    .attributes = {FloatAttribute("alpha", 1.0), FloatAttribute("beta", 1.0), IntAttribute("transA", 0),
                   IntAttribute("transB", 0)},
    .make = MakeKernel<GemmKernel>,
});

}  // namespace

}  // namespace npu
