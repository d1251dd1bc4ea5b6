// ConvTranspose (ai.onnx 1 to 22): the gradient of a convolution with respect to its input. For each image and group it
// is the product of the transposed weight, [channels out * taps, channels in], and the input; row (m, tap) is then
// added to the positions of plane m that this tap reads in the convolution. Sums are kept in float (double for float64)
// and rounded once.
#include <algorithm>
#include <utility>
#include <vector>

#include "ep/kernels/convolution/arguments.h"
#include "ep/kernels/convolution/columns.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/gemm/gemm.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/pooling/rows.h"

namespace npu {
namespace {

using convolution::Taps;
using pooling::AutoPad;
using pooling::Axis;

constexpr const char* kOp = "ConvTranspose";
constexpr int64_t kProductBytes = 1 << 20;  // of the planes that are computed together

thread_local gemm::AlignedBuffer product_buffer;

// `taps`: of the convolution from the output's planes to the input's.
template <class T>
struct Scatter {
  using C = ComputeType<T>;
  Taps taps;
  int64_t images, groups, channels_in, channels_out;  // channels: of a group
  const T* x;
  const T* weight;
  const T* bias;  // may be null
  T* y;

  void Run() const {
    const int64_t bytes = taps.count() * taps.outputs() * static_cast<int64_t>(sizeof(C));
    const int64_t together = std::clamp<int64_t>(kProductBytes / std::max<int64_t>(1, bytes), 1, channels_out);
    const int64_t parts = (channels_out + together - 1) / together, count = images * groups * parts;
    const std::vector<convolution::Run> runs = taps.RunsOf(0, taps.outputs());
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % parts * together;
        Planes(runs, item / parts, first, std::min(first + together, channels_out));
      }
    };
    if (count < NumThreads()) {
      run(0, count);  // each product is split
    } else {
      ParallelFor(count, 1, run);
    }
  }

 private:
  // Output channels [begin, end) of one group of one image; `entry` counts these.
  void Planes(const std::vector<convolution::Run>& runs, int64_t entry, int64_t begin, int64_t end) const {
    const int64_t positions = taps.outputs(), rows = (end - begin) * taps.count(), group = entry % groups;
    C* product = static_cast<C*>(product_buffer.Reserve(rows * positions * static_cast<int64_t>(sizeof(C))));
    const int64_t columns = channels_out * taps.count();
    const T* w = weight + group * channels_in * columns + begin * taps.count();
    Multiply({w, rows, channels_in, 1, columns},
             gemm::Matrix::RowMajor(x + entry * channels_in * positions, channels_in, positions), product);
    pooling::RowWriter<T> writer(taps.inputs());
    for (int64_t m = begin; m < end; ++m) {
      T* to = y + (entry * channels_out + m) * taps.inputs();
      C* sums = writer.Values(to);
      std::fill(sums, sums + taps.inputs(), bias == nullptr ? C{0} : Upcast(bias[group * channels_out + m]));
      convolution::AddColumns(taps, runs, product + (m - begin) * taps.count() * positions, sums);
      writer.Commit(to, taps.inputs());
    }
  }

  static void Multiply(const gemm::Matrix& a, const gemm::Matrix& b, C* c) {
    if constexpr (std::is_same_v<T, double>) {  // the matrix unit has none
      PlainProduct<T>(a, b, c);
    } else {
      gemm::Multiply(DTypeOf<T>::value, a, b, {c, DType::kFloat32, b.columns});
    }
  }
};

class ConvTransposeKernel final : public Kernel {
 public:
  explicit ConvTransposeKernel(const KernelInfo& info)
      : attributes_(info.attributes), groups_(convolution::ReadGroups(kOp, info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), weight = ctx.Input(1), bias = ctx.Input(2);
    convolution::CheckOperands(kOp, x, weight, bias);
    NPU_OP_CHECK(kOp, x.shape[1] == weight.shape[0] && x.shape[1] % groups_ == 0,
                 "expected W [C, M / group, kernel] for C = ", x.shape[1], " and group = ", groups_, ", got shape ",
                 weight.shape);
    int64_t out = 0;
    NPU_OP_CHECK(kOp, !__builtin_mul_overflow(weight.shape[1], groups_, &out), "expected fewer groups, got ", groups_);
    convolution::CheckBias(kOp, bias, out);
    std::vector<Axis> axes = AxesOf(x.shape, weight.shape);
    Shape shape{x.shape[0], out};
    for (const Axis& axis : axes) shape.push_back(axis.in);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [task = Scatter<T>{Taps(std::move(axes)), x.shape[0], groups_, x.shape[1] / groups_,
                                         weight.shape[1], x.as<const T>(), weight.as<const T>(), bias.as<const T>(),
                                         y.as<T>()}] { task.Run(); });
    });
  }

 private:
  std::vector<Axis> AxesOf(const Shape& x, const Shape& weight) const {
    const size_t spatial = static_cast<size_t>(x.rank()) - 2;
    const std::vector<int64_t> kernel = convolution::KernelOf(kOp, attributes_, weight);
    const auto read = [&](const char* name, size_t count, int64_t fallback, int64_t least) {
      return pooling::ReadList(kOp, attributes_, name, count, fallback, least);
    };
    const std::vector<int64_t> strides = read("strides", spatial, 1, 1);
    const std::vector<int64_t> dilations = read("dilations", spatial, 1, 1);
    const std::vector<int64_t> more = read("output_padding", spatial, 0, 0);
    const std::vector<int64_t> pads = read("pads", 2 * spatial, 0, 0);
    const bool stated = attributes_.Has("output_shape") && !attributes_.Ints("output_shape").empty();
    std::vector<int64_t> sizes = stated ? attributes_.Ints("output_shape") : std::vector<int64_t>();
    if (sizes.size() == spatial + 2) sizes.erase(sizes.begin(), sizes.begin() + 2);  // as some exporters write it
    NPU_OP_CHECK(kOp, !stated || sizes.size() == spatial, "expected an output_shape of ", spatial,
                 " spatial dimensions, got ", sizes.size());
    const AutoPad mode = pooling::ReadAutoPad(kOp, attributes_);
    std::vector<Axis> axes;
    for (size_t d = 0; d < spatial; ++d) {
      Axis axis;
      axis.out = x[static_cast<int>(d) + 2];
      axis.kernel = kernel[d];
      axis.stride = strides[d];
      axis.dilation = dilations[d];
      NPU_OP_CHECK(kOp, axis.kernel > 0 && axis.out > 0 && axis.out <= pooling::kMaxAttribute,
                   "expected spatial dimensions with elements, got X ", x, " and W ", weight);
      const int64_t whole = (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1 + more[d];
      if (stated || mode == AutoPad::kSameUpper || mode == AutoPad::kSameLower) {
        axis.in = stated ? sizes[d] : axis.out * axis.stride;
        const int64_t cut = std::max<int64_t>(0, whole - axis.in);
        axis.before = mode == AutoPad::kSameUpper ? cut / 2 : cut - cut / 2;
      } else if (mode == AutoPad::kNotSet) {
        axis.before = pads[d];
        axis.in = whole - pads[d] - pads[d + spatial];
      } else {
        axis.in = whole;
      }
      NPU_OP_CHECK(kOp, axis.in > 0, "expected an output with elements, got size ", axis.in, " of spatial dimension ",
                   d);
      axes.push_back(axis);
    }
    return axes;
  }

  Attributes attributes_;
  int64_t groups_;
};

NPU_ONNX_KERNEL({
    .type = "ConvTranspose",
    .since = 1,
    .until = 22,
    .inputs = {Input("X", kAllFloats), Input("W", kAllFloats), OptionalInput("B", kAllFloats)},
    .outputs = {Output("Y", kAllFloats)},
    .attributes = convolution::ConvolutionAttributes({IntsAttribute("output_padding"), IntsAttribute("output_shape")}),
    .make = MakeKernel<ConvTransposeKernel>,
});

}  // namespace
}  // namespace npu
