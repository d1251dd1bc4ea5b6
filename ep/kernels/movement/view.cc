// Operators that keep the bytes and change the shape: Identity, Reshape, Squeeze, Unsqueeze, Flatten. If input and
// output share a buffer, they do nothing.
#include <algorithm>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

void ComputeView(OpContext& ctx, const char* op, const Shape& shape) {
  const TensorView x = ctx.Input(0);
  LaunchCopy(ctx, op, x, ctx.Output(0, x.dtype, shape));
}

class IdentityKernel : public Kernel {
 public:
  explicit IdentityKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override { ComputeView(ctx, "Identity", ctx.Input(0).shape); }
};

class ReshapeKernel : public Kernel {
 public:
  explicit ReshapeKernel(const KernelInfo& info) : allow_zero_(info.attributes.Bool("allowzero")) {}
  void Compute(OpContext& ctx) const override {
    ComputeView(ctx, "Reshape", TargetShape(ctx.Input(0).shape, ReadHostInts("Reshape", "shape", ctx.Input(1))));
  }

 private:
  Shape TargetShape(const Shape& from, const std::vector<int64_t>& target) const {
    Shape to(target);
    int inferred = -1;
    for (int i = 0; i < to.rank(); ++i) {
      if (to[i] == -1) {
        NPU_CHECK(inferred < 0, "[Reshape] expected at most one -1 in shape, got ", Shape(target));
        inferred = i;
        to[i] = 1;
      } else if (to[i] == 0 && !allow_zero_) {
        NPU_CHECK(i < from.rank(), "[Reshape] expected a dimension of the input to copy for the 0 at ", i, " of shape ",
                  Shape(target), ", got input shape ", from);
        to[i] = from[i];
      } else {
        NPU_CHECK(to[i] >= 0, "[Reshape] expected dimensions >= -1 in shape, got ", Shape(target));
      }
    }
    const int64_t have = from.Elements();
    const int64_t want = to.Elements();
    if (inferred >= 0) {
      NPU_CHECK(want != 0 && have % want == 0, "[Reshape] expected a shape of ", have, " elements for input shape ",
                from, ", got ", Shape(target));
      to[inferred] = have / want;
    } else {
      NPU_CHECK(have == want, "[Reshape] expected a shape of ", have, " elements for input shape ", from, ", got ",
                Shape(target));
    }
    return to;
  }

  bool allow_zero_;
};

// Sorted, resolved against `rank`, without duplicates.
std::vector<int> ResolveAxes(const char* op, const std::vector<int64_t>& axes, int rank) {
  std::vector<int> resolved;
  for (int64_t axis : axes) resolved.push_back(NormalizeAxis(op, axis, rank));
  std::sort(resolved.begin(), resolved.end());
  const bool repeated = std::adjacent_find(resolved.begin(), resolved.end()) != resolved.end();
  NPU_OP_CHECK(op, !repeated, "expected axes without repetition, got ", Shape(axes));
  return resolved;
}

// `axes` is an attribute before opset 13 and a host input since then.
class AxesKernel : public Kernel {
 public:
  AxesKernel(const KernelInfo& info, const char* op) : op_(op), attribute_(info.attributes.Ints("axes")) {}

 protected:
  std::vector<int64_t> Axes(OpContext& ctx) const {
    const TensorView axes = ctx.Input(1);
    if (!axes) return attribute_;
    NPU_OP_CHECK(op_, axes.elements() <= Shape::kMaxRank, "expected at most ", Shape::kMaxRank, " axes, got ",
                 axes.elements());
    return ReadHostInts(op_, "axes", axes);
  }
  const char* op_;

 private:
  std::vector<int64_t> attribute_;
};

class SqueezeKernel : public AxesKernel {
 public:
  explicit SqueezeKernel(const KernelInfo& info) : AxesKernel(info, "Squeeze") {}
  void Compute(OpContext& ctx) const override {
    const Shape from = ctx.Input(0).shape;
    const std::vector<int> axes = ResolveAxes(op_, Axes(ctx), from.rank());
    Shape to;
    for (int i = 0; i < from.rank(); ++i) {
      const bool named = std::binary_search(axes.begin(), axes.end(), i);
      NPU_CHECK(!named || from[i] == 1, "[Squeeze] expected dimension ", i, " to be 1, got shape ", from);
      if (!(named || (axes.empty() && from[i] == 1))) to.push_back(from[i]);
    }
    ComputeView(ctx, op_, to);
  }
};

class UnsqueezeKernel : public AxesKernel {
 public:
  explicit UnsqueezeKernel(const KernelInfo& info) : AxesKernel(info, "Unsqueeze") {}
  void Compute(OpContext& ctx) const override {
    const Shape from = ctx.Input(0).shape;
    const std::vector<int64_t> given = Axes(ctx);
    const int rank = from.rank() + static_cast<int>(given.size());
    const std::vector<int> axes = ResolveAxes(op_, given, rank);
    Shape to;
    for (int i = 0, next = 0; i < rank; ++i) {
      to.push_back(std::binary_search(axes.begin(), axes.end(), i) ? 1 : from[next++]);
    }
    ComputeView(ctx, op_, to);
  }
};

class FlattenKernel : public Kernel {
 public:
  explicit FlattenKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}
  void Compute(OpContext& ctx) const override {
    const Shape from = ctx.Input(0).shape;
    const int rank = from.rank();
    NPU_CHECK(axis_ >= -rank && axis_ <= rank, "[Flatten] expected axis in [", -rank, ", ", rank, "], got ", axis_);
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    ComputeView(ctx, "Flatten", Shape{from.Elements(0, axis), from.Elements(axis, rank)});
  }

 private:
  int64_t axis_;
};

// Operators whose output is their first input with another shape.
OpDef ViewDef(OpDef def) {
  def.view_alias = {{0, 0}};
  def.shape_arithmetic = ShapeArithmetic::kFirst;
  return def;
}

constexpr DTypeSet kInt64{DType::kInt64};

NPU_ONNX_KERNEL(ViewDef({
    .type = "Identity",
    .since = 1,
    .until = 25,
    .inputs = {Input("input", kAnyWidth)},
    .outputs = {Output("output", kAnyWidth)},
    .make = MakeKernel<IdentityKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Reshape",
    .since = 5,
    .until = 25,
    .inputs = {Input("data", kAnyWidth), HostInput("shape", kInt64)},
    .outputs = {Output("reshaped", kAnyWidth)},
    .attributes = {IntAttribute("allowzero", 0)},
    .make = MakeKernel<ReshapeKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Squeeze",
    .since = 1,
    .until = 11,
    .inputs = {Input("data", kAnyWidth)},
    .outputs = {Output("squeezed", kAnyWidth)},
    .attributes = {IntsAttribute("axes")},
    .make = MakeKernel<SqueezeKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Squeeze",
    .since = 13,
    .until = 25,
    .inputs = {Input("data", kAnyWidth), OptionalHostInput("axes", kInt64)},
    .outputs = {Output("squeezed", kAnyWidth)},
    .make = MakeKernel<SqueezeKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Unsqueeze",
    .since = 1,
    .until = 11,
    .inputs = {Input("data", kAnyWidth)},
    .outputs = {Output("expanded", kAnyWidth)},
    .attributes = {IntsAttribute("axes")},
    .make = MakeKernel<UnsqueezeKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Unsqueeze",
    .since = 13,
    .until = 25,
    .inputs = {Input("data", kAnyWidth), HostInput("axes", kInt64)},
    .outputs = {Output("expanded", kAnyWidth)},
    .make = MakeKernel<UnsqueezeKernel>,
}));
NPU_ONNX_KERNEL(ViewDef({
    .type = "Flatten",
    .since = 1,
    .until = 25,
    .inputs = {Input("input", kAnyWidth)},
    .outputs = {Output("output", kAnyWidth)},
    .attributes = {IntAttribute("axis", 1)},
    .make = MakeKernel<FlattenKernel>,
}));

}  // namespace
}  // namespace npu
