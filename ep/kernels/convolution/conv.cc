// Conv (ai.onnx 1 to 22), of any number of spatial dimensions. For each image and group it is the product of the
// weight, [channels out, channels in * taps], and a matrix with a column for each output position (columns.h), which is
// made in pieces that stay in the second-level cache.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/columns.h"
#include "ep/kernels/convolution/depthwise.h"
#include "ep/kernels/convolution/few_positions.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

using convolution::FewPositions;
using convolution::Taps;

constexpr const char* kOp = "Conv";
constexpr int64_t kColumnsBytes = 512 << 10;  // of a piece: half a common second-level cache
constexpr int64_t kColumnsMultiple = 64;      // whole panels of the product

thread_local gemm::AlignedBuffer columns_buffer;

// The part of one image's output that a task computes.
struct Piece {
  int64_t image, group, begin, end;
};

struct Products {
  Taps taps;
  DType dtype;
  int64_t images, groups, channels_in, channels_out;  // channels: of a group
  const char* x;
  const char* weight;
  TensorView bias;
  char* y;

  int64_t depth() const { return channels_in * taps.count(); }
  int64_t bytes() const { return BitsOf(dtype) / 8; }

  // The outputs of a piece: a whole plane where no columns are made.
  int64_t Width() const {
    const int64_t outputs = taps.outputs();
    if (taps.pointwise()) return outputs;
    const int64_t fitting = kColumnsBytes / std::max<int64_t>(1, depth() * bytes());
    const int64_t threads = NumThreads(), shares = (threads + images * groups - 1) / (images * groups);
    const int64_t width = std::min(fitting, (outputs + shares - 1) / shares);
    return std::clamp<int64_t>((width + kColumnsMultiple - 1) / kColumnsMultiple * kColumnsMultiple, kColumnsMultiple,
                               std::max(outputs, kColumnsMultiple));
  }

  void Run() const {
    const int64_t width = Width(), pieces = (taps.outputs() + width - 1) / width, count = images * groups * pieces;
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % pieces * width;
        RunPiece({item / pieces / groups, item / pieces % groups, first, std::min(first + width, taps.outputs())});
      }
    };
    if (count < NumThreads()) {
      run(0, count);  // the product of each piece is split
    } else {
      ParallelFor(count, 1, run);
    }
  }

 private:
  void RunPiece(const Piece& piece) const {
    const int64_t width = piece.end - piece.begin, outputs = taps.outputs();
    const char* planes = x + (piece.image * groups + piece.group) * channels_in * taps.inputs() * bytes();
    gemm::Matrix columns{planes, depth(), width, outputs, 1};
    if (!taps.pointwise()) {
      void* buffer = columns_buffer.Reserve(depth() * width * bytes());
      DispatchSize(static_cast<int>(bytes()), [&](auto element) {
        using U = decltype(element);
        ReadColumns(taps, reinterpret_cast<const U*>(planes), channels_in, piece.begin, piece.end,
                    static_cast<U*>(buffer), width);
      });
      columns = gemm::Matrix::RowMajor(buffer, depth(), width);
    }
    const int64_t first_row = piece.group * channels_out;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(weight + first_row * depth() * bytes(), channels_out, depth());
    char* to = y + (((piece.image * groups + piece.group) * channels_out) * outputs + piece.begin) * bytes();
    if (dtype == DType::kFloat64) return MultiplyDoubles(rows, columns, first_row, reinterpret_cast<double*>(to));
    gemm::Epilogue epilogue;
    if (bias) epilogue.addend = {bias.as<const char>() + first_row * bytes(), dtype, 1, 0};
    gemm::Multiply(dtype, rows, columns, {to, dtype, outputs}, epilogue);
  }

  // The matrix unit has no double.
  void MultiplyDoubles(const gemm::Matrix& rows, const gemm::Matrix& columns, int64_t first_row, double* to) const {
    const double* w = static_cast<const double*>(rows.data);
    for (int64_t m = 0; m < rows.rows; ++m) {
      double* out = to + m * taps.outputs();
      std::fill(out, out + columns.columns, bias ? bias.as<const double>()[first_row + m] : 0.0);
      for (int64_t k = 0; k < rows.columns; ++k) {
        const double* in = static_cast<const double*>(columns.data) + k * columns.row_stride;
        const double by = w[m * rows.columns + k];
        for (int64_t i = 0; i < columns.columns; ++i) out[i] += by * in[i];
      }
    }
  }
};

class ConvKernel final : public Kernel {
 public:
  explicit ConvKernel(const KernelInfo& info)
      : attributes_(info.attributes), groups_(convolution::ReadGroups(kOp, info.attributes)) {
    if (!info.input_shapes.empty()) declared_input_ = info.input_shapes[0];
  }

  // Keeps the weight of a model whose planes have few positions in panel order.
  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input != 1 || groups_ != 1 || !gemm::Supports(constant.dtype) || !declared_input_) return false;
    const Shape& x = *declared_input_;
    if (x.rank() < 3 || x.rank() != constant.shape.rank() ||
        std::any_of(x.begin() + 2, x.end(), [](int64_t d) { return d < 0; }))
      return false;
    Shape planes{1, constant.shape[1]};
    for (int d = 2; d < x.rank(); ++d) planes.push_back(x[d]);
    const int64_t out = constant.shape[0];
    const std::vector<pooling::Axis> axes = AxesOf(planes, constant.shape);
    if (constant.elements() == 0 || !FewPositions::Fits(Taps(axes).outputs(), out)) return false;
    weight_shape_ = constant.shape;
    const int64_t depth = constant.shape.Elements(1, constant.shape.rank());
    packed_.Pack(kOp, constant.dtype, gemm::Matrix::RowMajor(constant.data, out, depth).Transposed(), stream);
    return true;
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), bias = ctx.Input(2);
    TensorView weight = ctx.Input(1);
    if (packed_) {  // the weight itself is gone
      weight.dtype = x.dtype;
      weight.shape = weight_shape_;
    }
    convolution::CheckOperands(kOp, x, weight, bias);
    const int64_t channels = x.shape[1], out = weight.shape[0];
    NPU_CHECK(channels % groups_ == 0 && channels / groups_ == weight.shape[1] && out % groups_ == 0, "[", kOp,
              "] expected W [M, C / group, kernel] for C = ", channels, " and group = ", groups_, ", got shape ",
              weight.shape);
    convolution::CheckBias(kOp, bias, out);
    std::vector<pooling::Axis> axes = AxesOf(x.shape, weight.shape);
    Shape shape = pooling::OutputShape(x.shape, axes);
    shape[1] = out;
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    Taps taps(std::move(axes));
    if (packed_) return LaunchFewPositions(ctx, std::move(taps), x, bias, y);
    if (weight.shape[1] == 1) return LaunchDepthwise(ctx, std::move(taps), x, weight, bias, y);
    ctx.Launch(kOp, [products = Products{std::move(taps), x.dtype, x.shape[0], groups_, weight.shape[1], out / groups_,
                                         x.as<const char>(), weight.as<const char>(), bias, y.as<char>()}] {
      products.Run();
    });
  }

 private:
  std::vector<pooling::Axis> AxesOf(const Shape& x, const Shape& weight) const {
    const std::vector<int64_t> kernel = convolution::KernelOf(kOp, attributes_, weight);
    for (const int64_t size : kernel) NPU_CHECK(size > 0, "[", kOp, "] expected a kernel with taps, got W ", weight);
    return pooling::Sliding(kOp, attributes_, kernel).AxesOf(x);
  }

  void LaunchFewPositions(OpContext& ctx, Taps taps, const TensorView& x, const TensorView& bias,
                          const TensorView& y) const {
    const int64_t out = weight_shape_[0], depth = weight_shape_.Elements(1, weight_shape_.rank());
    FewPositions task{std::move(taps),
                      x.dtype,
                      x.shape[0],
                      x.shape[1],
                      out,
                      x.as<const char>(),
                      packed_.matrix({nullptr, depth, out}),
                      bias,
                      y.as<char>(),
                      nullptr,
                      nullptr};
    task.columns = static_cast<char*>(ctx.Workspace(task.ColumnsBytes()));
    task.product = static_cast<char*>(ctx.Workspace(task.ProductBytes()));
    ctx.Launch(kOp, [task = std::move(task)] { task.Run(); });
  }

  void LaunchDepthwise(OpContext& ctx, Taps taps, const TensorView& x, const TensorView& weight, const TensorView& bias,
                       const TensorView& y) const {
    const int64_t out = weight.shape[0];
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(
          kOp, [task = convolution::Depthwise<T>{std::move(taps), x.shape[0] * out, out, out / groups_, x.as<const T>(),
                                                 weight.as<const T>(), bias.as<const T>(), y.as<T>()}] { task.Run(); });
    });
  }

  Attributes attributes_;
  int64_t groups_;
  std::optional<Shape> declared_input_;
  gemm::PackedWeight packed_;
  Shape weight_shape_;  // of a packed weight
};

NPU_ONNX_KERNEL({
    .type = "Conv",
    .since = 1,
    .until = 22,
    .inputs = {Input("X", kAllFloats), Input("W", kAllFloats), OptionalInput("B", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = {IntsAttribute("kernel_shape"), IntsAttribute("strides"), IntsAttribute("pads"),
                   IntsAttribute("dilations"), StringAttribute("auto_pad", "NOTSET"), IntAttribute("group", 1)},
    .make = MakeKernel<ConvKernel>,
});

}  // namespace
}  // namespace npu
