// Conv (ai.onnx 1 to 22), of any number of spatial dimensions, and FusedConv (npu.fused), which adds a residual and
// applies an activation. For each image and group it is the product of the
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
#include "ep/kernels/convolution/finish.h"
#include "ep/kernels/convolution/taps.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/gemm/packing.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using convolution::FewPositions;
using convolution::Finish;
using convolution::kColumnsSlack;
using convolution::PaddedPlane;
using convolution::Taps;

constexpr const char* kOp = "Conv";
constexpr int64_t kCacheBytes = 640 << 10;  // of a piece and the weight: most of a common second-level cache
// Results of so many bytes are no longer in a cache when they are finished: with their rows far apart, they are not
// even stored fast.
constexpr int64_t kLargeResult = 2 << 20;
constexpr int64_t kProductsBytes = 512 << 10;              // of a piece of them
constexpr int64_t kColumnsMultiple = gemm::kPanelColumns;  // whole panels of the product
constexpr int64_t kPadGrain = 32768;                       // elements that are worth a thread

thread_local gemm::AlignedBuffer columns_buffer, products_buffer;

// One group of one image.
struct Item {
  int64_t image, group;
};

struct Products {
  Taps taps;
  std::optional<PaddedPlane> padded;  // unless no columns are made, or padding would be most of it
  DType dtype;
  int64_t images, groups, channels_in, channels_out;  // channels: of a group
  const char* x;
  const char* weight;
  TensorView bias;
  char* y;
  Finish finish;
  // The padded planes of so many items at a time.
  int64_t slots = 1;
  char* planes = nullptr;

  Products(Taps with, const TensorView& x, const TensorView& weight, int64_t groups, const TensorView& bias,
           const Finish& finish)
      : taps(std::move(with)),
        dtype(x.dtype),
        images(x.shape[0]),
        groups(groups),
        channels_in(weight.shape[1]),
        channels_out(weight.shape[0] / groups),
        x(x.as<const char>()),
        weight(weight.as<const char>()),
        bias(bias),
        y(finish.y.as<char>()),
        finish(finish) {
    if (taps.pointwise() || !PaddedPlane::Suits(taps)) return;
    padded.emplace(taps);
    if (images * groups >= NumThreads()) slots = NumThreads();
  }

  // Of `planes`.
  size_t PlaneBytes() const { return padded ? BytesFor(dtype, Shape{slots, SlotElements()}.Elements()) : 0; }

  // Items in parallel, each with pieces one after the other, or one item after the other with pieces in parallel.
  void Run() const {
    const int64_t items = images * groups;
    if (items >= NumThreads() && (slots > 1 || !padded)) {
      const int64_t shares = padded ? slots : items;
      ParallelFor(shares, 1, [&](int64_t begin, int64_t end) {
        for (int64_t share = begin; share < end; ++share)
          for (int64_t item = share * items / shares; item < (share + 1) * items / shares; ++item)
            RunItem({item / groups, item % groups}, share);
      });
    } else {
      for (int64_t item = 0; item < items; ++item) RunItem({item / groups, item % groups}, 0);
    }
  }

 private:
  int64_t depth() const { return channels_in * taps.count(); }
  int64_t bytes() const { return BitsOf(dtype) / 8; }
  int64_t SlotElements() const { return channels_in * padded->size() + kColumnsSlack; }
  const char* PlanesOf(const Item& item) const {
    return x + (item.image * groups + item.group) * channels_in * taps.inputs() * bytes();
  }

  // Whether products are kept apart until they are finished.
  bool FinishesCopies() const {
    return finish && taps.pointwise() && channels_out * taps.outputs() * bytes() > kLargeResult;
  }

  // The outputs of a piece: a whole plane where no columns are made.
  int64_t Width() const {
    const int64_t outputs = taps.outputs();
    if (FinishesCopies()) return std::min(outputs, WholePanels(kProductsBytes / (channels_out * bytes())));
    if (taps.pointwise()) return outputs;
    const int64_t column_bytes = std::max<int64_t>(1, depth() * bytes());
    const int64_t fitting = (kCacheBytes - channels_out * column_bytes) / column_bytes;
    const int64_t threads = NumThreads(), shares = (threads + images * groups - 1) / (images * groups);
    const int64_t width = std::min(fitting, (outputs + shares - 1) / shares);
    return std::min(WholePanels(width), std::max(outputs, kColumnsMultiple));
  }
  static int64_t WholePanels(int64_t width) {
    return std::max(width / kColumnsMultiple, int64_t{1}) * kColumnsMultiple;
  }

  void RunItem(const Item& item, int64_t slot) const {
    char* padded_planes = nullptr;
    if (padded) {
      padded_planes = planes + slot * SlotElements() * bytes();
      DispatchSize(static_cast<int>(bytes()), [&](auto element) {
        using U = decltype(element);
        Pad(reinterpret_cast<const U*>(PlanesOf(item)), reinterpret_cast<U*>(padded_planes));
      });
    }
    const int64_t width = Width(), pieces = (taps.outputs() + width - 1) / width;
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece)
        RunPiece(item, padded_planes, piece * width, std::min((piece + 1) * width, taps.outputs()));
    };
    if (pieces < NumThreads()) {
      run(0, pieces);  // the product of each piece is split
    } else {
      ParallelFor(pieces, 1, run);
    }
  }

  template <class U>
  void Pad(const U* from, U* to) const {
    // Few large planes are shared in parts.
    const int64_t parts = (padded->size() + kPadGrain - 1) / kPadGrain;
    ParallelFor(channels_in * parts, std::max<int64_t>(1, kPadGrain / padded->size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = i / parts;
        padded->WritePart(from + c * taps.inputs(), to + c * padded->size(), i % parts, parts);
      }
    });
  }

  // The outputs [begin, end) of all channels.
  void RunPiece(const Item& item, const char* padded_planes, int64_t begin, int64_t end) const {
    const int64_t outputs = taps.outputs(), width = end - begin;
    const int64_t first = (item.image * groups + item.group) * channels_out * outputs + begin;
    if (FinishesCopies()) {
      void* products = products_buffer.Reserve(channels_out * width * bytes());
      MultiplyPiece(item, padded_planes, begin, end, {products, dtype, width});
      return finish.Rows(products, width, width, first, channels_out, outputs);
    }
    char* results = y + first * bytes();
    MultiplyPiece(item, padded_planes, begin, end, {results, dtype, outputs});
    if (finish) finish.Rows(results, outputs, width, first, channels_out, outputs);
  }

  void MultiplyPiece(const Item& item, const char* padded_planes, int64_t begin, int64_t end,
                     const gemm::Result& result) const {
    const int64_t width = end - begin, outputs = taps.outputs(), first_row = item.group * channels_out;
    const gemm::Matrix rows = gemm::Matrix::RowMajor(weight + first_row * depth() * bytes(), channels_out, depth());
    gemm::Epilogue epilogue;
    if (bias) epilogue.addend = {bias.as<const char>() + first_row * bytes(), dtype, 1, 0};
    if (padded && HasPlainPanels()) {
      const void* panels = DispatchSize(static_cast<int>(bytes()), [&](auto element) {
        return Panels(reinterpret_cast<const decltype(element)*>(padded_planes), begin, end);
      });
      return gemm::Multiply(rows, {.data = panels, .dtype = dtype, .stored = dtype, .rows = depth(), .columns = width},
                            result, epilogue);
    }
    gemm::Matrix columns{PlanesOf(item) + begin * bytes(), depth(), width, outputs, 1};
    if (!taps.pointwise()) {
      const void* matrix = DispatchSize(static_cast<int>(bytes()), [&](auto element) {
        using U = decltype(element);
        const char* from = padded ? padded_planes : PlanesOf(item);
        return Columns(reinterpret_cast<const U*>(from), begin, end);
      });
      columns = gemm::Matrix::RowMajor(matrix, depth(), width);
    }
    if (dtype == DType::kFloat64) return MultiplyDoubles(rows, columns, first_row, result);
    gemm::Multiply(dtype, rows, columns, result, epilogue);
  }

  // Whether panels of the product consist of rows of elements as they are.
  bool HasPlainPanels() const {
    if (!gemm::Supports(dtype)) return false;
    const gemm::PanelFormat format = gemm::FormatOf(dtype);
    return gemm::RowDepth(format) == 1 && gemm::HeaderBytes(format) == 0;
  }

  // The columns in panel order, in this thread's memory.
  template <class U>
  const void* Panels(const U* planes, int64_t begin, int64_t end) const {
    const int64_t panel = depth() * gemm::kPanelColumns, count = gemm::PanelCount(end - begin);
    U* panels = static_cast<U*>(columns_buffer.Reserve((count * panel + kColumnsSlack) * bytes()));
    for (int64_t p = 0; p < count; ++p) {
      const int64_t first = begin + p * gemm::kPanelColumns;
      convolution::ReadPaddedColumns(*padded, planes, channels_in, first, std::min(first + gemm::kPanelColumns, end),
                                     panels + p * panel, gemm::kPanelColumns);
    }
    return panels;
  }

  // The columns as a row-major matrix, in this thread's memory.
  template <class U>
  const void* Columns(const U* planes, int64_t begin, int64_t end) const {
    const int64_t width = end - begin;
    U* columns = static_cast<U*>(columns_buffer.Reserve((depth() * width + kColumnsSlack) * bytes()));
    if (padded) {
      convolution::ReadPaddedColumns(*padded, planes, channels_in, begin, end, columns, width);
    } else {
      convolution::ReadColumns(taps, planes, channels_in, begin, end, columns, width);
    }
    return columns;
  }

  // The matrix unit has no double.
  void MultiplyDoubles(const gemm::Matrix& rows, const gemm::Matrix& columns, int64_t first_row,
                       const gemm::Result& result) const {
    const double* w = static_cast<const double*>(rows.data);
    for (int64_t m = 0; m < rows.rows; ++m) {
      double* out = static_cast<double*>(result.data) + m * result.row_stride;
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
      : attributes_(info.attributes),
        groups_(convolution::ReadGroups(kOp, info.attributes)),
        activation_(kOp, info.attributes) {
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
    NPU_OP_CHECK(kOp, channels % groups_ == 0 && channels / groups_ == weight.shape[1] && out % groups_ == 0,
                 "expected W [M, C / group, kernel] for C = ", channels, " and group = ", groups_, ", got shape ",
                 weight.shape);
    convolution::CheckBias(kOp, bias, out);
    std::vector<pooling::Axis> axes = AxesOf(x.shape, weight.shape);
    Shape shape = pooling::OutputShape(x.shape, axes);
    shape[1] = out;
    const TensorView residual = ctx.Input(3);
    NPU_OP_CHECK(kOp, !residual || (residual.dtype == x.dtype && residual.shape == shape),
                 "expected a residual of the output's type and shape ", shape, ", got shape ", residual.shape);
    const Finish finish{activation_, ctx.Output(0, x.dtype, shape), residual};
    if (finish.y.elements() == 0) return;
    Taps taps(std::move(axes));
    if (packed_) return LaunchFewPositions(ctx, std::move(taps), x, bias, finish);
    if (weight.shape[1] == 1) return LaunchDepthwise(ctx, std::move(taps), x, weight, bias, finish);
    Products products(std::move(taps), x, weight, groups_, bias, finish);
    products.planes = static_cast<char*>(ctx.Workspace(products.PlaneBytes()));
    ctx.Launch(kOp, [products = std::move(products)] { products.Run(); });
  }

 private:
  std::vector<pooling::Axis> AxesOf(const Shape& x, const Shape& weight) const {
    return convolution::AxesOf(kOp, attributes_, x, weight);
  }

  void LaunchFewPositions(OpContext& ctx, Taps taps, const TensorView& x, const TensorView& bias,
                          const Finish& finish) const {
    const int64_t out = weight_shape_[0], depth = weight_shape_.Elements(1, weight_shape_.rank());
    FewPositions task{std::move(taps),
                      x.dtype,
                      x.shape[0],
                      x.shape[1],
                      out,
                      x.as<const char>(),
                      packed_.matrix({nullptr, depth, out}),
                      bias,
                      finish,
                      nullptr,
                      nullptr};
    task.columns = static_cast<char*>(ctx.Workspace(task.ColumnsBytes()));
    task.product = static_cast<char*>(ctx.Workspace(task.ProductBytes()));
    ctx.Launch(kOp, [task = std::move(task)] { task.Run(); });
  }

  void LaunchDepthwise(OpContext& ctx, Taps taps, const TensorView& x, const TensorView& weight, const TensorView& bias,
                       const Finish& finish) const {
    const int64_t out = weight.shape[0];
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [task = convolution::Depthwise<T>{{std::move(taps), x.shape[0] * out, out, out / groups_,
                                                         x.as<const T>(), weight.as<const T>(), bias.as<const T>(),
                                                         finish}}] { task.Run(); });
    });
  }

  Attributes attributes_;
  int64_t groups_;
  OutputActivation activation_;
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
    .attributes = convolution::ConvolutionAttributes(),
    .make = MakeKernel<ConvKernel>,
});
// activation(Conv(X, W, B) + Z): what a fusion rule of the provider makes.
NPU_ONNX_KERNEL({
    .domain = "npu.fused",
    .type = "FusedConv",
    .inputs = {Input("X", kAllFloats), Input("W", kAllFloats), OptionalInput("B", kAllFloats),
               OptionalInput("Z", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = convolution::ConvolutionAttributes(OutputActivation::Definitions()),
    .make = MakeKernel<ConvKernel>,
    .unsupported = [](const NodeView& node) { return OutputActivation::WhyUnsupported(node.attributes); },
});

}  // namespace
}  // namespace npu
