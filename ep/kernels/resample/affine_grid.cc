// AffineGrid (ai.onnx 20): the points of an image or a volume, from -1 to 1 along each axis, under affine maps: a grid
// for GridSample. With align_corners, the only point of an axis is at -1, as in onnx's reference; onnxruntime's CPU
// provider puts it at 1, torch at 0.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "AffineGrid";

template <class T, int dims>
struct MapPoints {
  using C = ComputeType<T>;
  const T* theta;  // [maps, dims, dims + 1]
  T* grid;         // [maps, points, dims]
  int64_t maps;
  std::array<int64_t, dims> sizes;  // (depth,) height, width
  bool align_corners;

  void Run() const {
    int64_t points = 1;
    for (const int64_t size : sizes) points *= size;
    ParallelFor(maps * points, kMathGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) Map(theta + i / points * dims * (dims + 1), i % points, grid + i * dims);
    });
  }

 private:
  void Map(const T* by, int64_t point, T* to) const {
    std::array<C, dims> from;  // x, y(, z)
    for (int d = 0; d < dims; ++d) {
      const int64_t size = sizes[dims - 1 - d], at = point % size;
      point /= size;
      from[d] = align_corners ? static_cast<C>(2 * at) / static_cast<C>(std::max<int64_t>(size - 1, 1)) - 1
                              : static_cast<C>(2 * at + 1) / static_cast<C>(size) - 1;
    }
    for (int row = 0; row < dims; ++row) {
      const T* of_row = by + row * (dims + 1);
      C sum = Upcast(of_row[dims]);
      for (int d = 0; d < dims; ++d) sum += Upcast(of_row[d]) * from[d];
      to[row] = Rounded<T>(sum);
    }
  }
};

class AffineGridKernel final : public Kernel {
 public:
  explicit AffineGridKernel(const KernelInfo& info) : align_corners_(info.attributes.Bool("align_corners")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView theta = ctx.Input(0);
    const Shape size(ReadHostInts(kOp, "size", ctx.Input(1)));
    NPU_OP_CHECK(kOp, size.rank() == 4 || size.rank() == 5, "expected a size [N, C, H, W] or [N, C, D, H, W], got ",
                 size);
    const int dims = size.rank() - 2;
    for (const int64_t length : size)
      NPU_OP_CHECK(kOp, length >= 0 && length <= INT32_MAX, "expected sizes from 0 to 2^31 - 1, got ", size);
    NPU_OP_CHECK(kOp, (theta.shape == Shape{size[0], dims, dims + 1}), "expected theta of shape ",
                 Shape{size[0], dims, dims + 1}, ", got ", theta.shape);
    Shape shape{size[0]};
    for (int d = 2; d < size.rank(); ++d) shape.push_back(size[d]);
    shape.push_back(dims);
    const TensorView grid = ctx.Output(0, theta.dtype, shape);
    if (grid.elements() == 0) return;
    DispatchTypes(kOp, theta.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      if (dims == 2) {
        Launch(ctx, MapPoints<T, 2>{theta.as<const T>(), grid.as<T>(), size[0], {size[2], size[3]}, align_corners_});
      } else {
        Launch(ctx, MapPoints<T, 3>{
                        theta.as<const T>(), grid.as<T>(), size[0], {size[2], size[3], size[4]}, align_corners_});
      }
    });
  }

 private:
  template <class Task>
  static void Launch(OpContext& ctx, const Task& task) {
    ctx.Launch(kOp, [task] { task.Run(); });
  }

  bool align_corners_;
};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 20,
    .until = 20,
    .inputs = {Input("theta", kAllFloats), HostInput("size", kInt64)},
    .outputs = {Output("grid", kAllFloats)},
    .attributes = {IntAttribute("align_corners", 0)},
    .make = MakeKernel<AffineGridKernel>,
});

}  // namespace
}  // namespace npu
