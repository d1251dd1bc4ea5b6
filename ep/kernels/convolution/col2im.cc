// Col2Im (ai.onnx 18): adds blocks, one for each position of a sliding window, to images. The transpose of reading the
// windows, as in ConvTranspose. 16-bit floats are summed in float; integers wrap.
#include <utility>
#include <vector>

#include "ep/kernels/convolution/columns.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/pooling/rows.h"
#include "ep/kernels/pooling/windows.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

using convolution::Taps;
using pooling::Axis;

constexpr const char* kOp = "Col2Im";

template <class T>
struct Fold {
  using C = ComputeType<T>;
  Taps taps;
  int64_t planes;
  const T* columns;  // [planes, taps, outputs]
  T* images;         // [planes, inputs]

  void Run() const {
    const std::vector<convolution::Run> runs = taps.RunsOf(0, taps.outputs());
    const int64_t block = taps.count() * taps.outputs();
    ParallelFor(planes, RowGrain(block), [&](int64_t begin, int64_t end) {
      pooling::RowReader<T> reader(block);
      pooling::RowWriter<T> writer(taps.inputs());
      for (int64_t plane = begin; plane < end; ++plane) {
        T* to = images + plane * taps.inputs();
        C* sums = writer.Values(to);
        std::fill_n(sums, taps.inputs(), C{0});
        convolution::AddColumns(taps, runs, reader(columns + plane * block, block), sums);
        writer.Commit(to, taps.inputs());
      }
    });
  }
};

class Col2ImKernel final : public Kernel {
 public:
  explicit Col2ImKernel(const KernelInfo& info) : attributes_(info.attributes) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    const std::vector<int64_t> image = ReadHostInts(kOp, "image_shape", ctx.Input(1)),
                               block = ReadHostInts(kOp, "block_shape", ctx.Input(2));
    Shape positions;
    std::vector<Axis> axes = AxesOf(image, block, positions);
    const int64_t taps = Shape(block).Elements();
    NPU_OP_CHECK(kOp, x.shape.rank() == 3 && x.shape[1] % taps == 0 && x.shape[2] == positions.Elements(),
                 "expected an input [N, C * ", taps, ", ", positions.Elements(), "], got shape ", x.shape);
    Shape shape{x.shape[0], x.shape[1] / taps};
    for (const int64_t size : image) shape.push_back(size);
    const TensorView y = ctx.Output(0, x.dtype, shape);
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [task = Fold<T>{Taps(std::move(axes)), shape.Elements(0, 2), x.as<const T>(), y.as<T>()}] {
        task.Run();
      });
    });
  }

 private:
  // The windows of a convolution over images of this size, and how many there are along each axis.
  std::vector<Axis> AxesOf(const std::vector<int64_t>& image, const std::vector<int64_t>& block,
                           Shape& positions) const {
    const size_t spatial = image.size();
    NPU_OP_CHECK(kOp, spatial >= 1 && spatial <= Shape::kMaxRank - 2 && block.size() == spatial,
                 "expected image_shape and block_shape of as many spatial dimensions, 1 to ", Shape::kMaxRank - 2,
                 ", got ", spatial, " and ", block.size());
    const auto read = [&](const char* name, size_t count, int64_t fallback, int64_t least) {
      return pooling::ReadList(kOp, attributes_, name, count, fallback, least);
    };
    const std::vector<int64_t> strides = read("strides", spatial, 1, 1), dilations = read("dilations", spatial, 1, 1),
                               pads = read("pads", 2 * spatial, 0, 0);
    std::vector<Axis> axes;
    for (size_t d = 0; d < spatial; ++d) {
      for (const int64_t size : {image[d], block[d]}) {
        NPU_OP_CHECK(kOp, size > 0 && size <= pooling::kMaxAttribute, "expected sizes of images and blocks from 1 to ",
                     pooling::kMaxAttribute, ", got ", size);
      }
      Axis axis;
      axis.in = image[d];
      axis.kernel = block[d];
      axis.stride = strides[d];
      axis.dilation = dilations[d];
      axis.before = pads[d];
      axis.after = pads[d + spatial];
      const int64_t room = axis.in + axis.before + axis.after - ((axis.kernel - 1) * axis.dilation + 1);
      NPU_OP_CHECK(kOp, room >= 0, "expected a block that fits the padded image, got one of ", axis.kernel,
                   " with dilation ", axis.dilation, " for ", axis.in, " positions of spatial dimension ", d);
      axis.out = room / axis.stride + 1;
      positions.push_back(axis.out);
      axes.push_back(axis);
    }
    return axes;
  }

  Attributes attributes_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 18,
    .until = 18,
    .inputs = {Input("input", kNumeric), HostInput("image_shape", kInt64), HostInput("block_shape", kInt64)},
    .outputs = {Output("output", kNumeric)},
    .attributes = {IntsAttribute("dilations"), IntsAttribute("pads"), IntsAttribute("strides")},
    .make = MakeKernel<Col2ImKernel>,
});

}  // namespace
}  // namespace npu
