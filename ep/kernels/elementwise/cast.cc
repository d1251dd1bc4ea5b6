// Cast and CastLike between the fixed-width types. Floats become integers as SafeCast says, everything
// that is not zero becomes true, and 16-bit floats go through float.
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/safe_cast.h"

namespace npu {
namespace {

// The byte of a bool, which may hold any non-zero value for true.
struct Bool8 {
  uint8_t byte;
};

template <class To, class From>
To ConvertElement(From value) {
  if constexpr (std::is_same_v<From, Bool8>) {
    return ConvertElement<To>(static_cast<uint8_t>(value.byte != 0));
  } else if constexpr (std::is_same_v<To, Bool8>) {
    return Bool8{static_cast<uint8_t>(value != From{0})};
  } else if constexpr (std::is_integral_v<To>) {
    return SafeCast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void ConvertLoop(const From* x, To* y, int64_t n) {
  if constexpr (kIsHalf<From>) {
    InBlock<From> in;
    ForEachBlock(n, [&](int64_t i, int64_t count) {
      const float* values = in.Load(x + i, count);
      if constexpr (kIsHalf<To>) {
        FromFloat(values, y + i, count);
      } else {
        ConvertLoop(values, y + i, count);
      }
    });
  } else if constexpr (kIsHalf<To>) {
    OutBlock<To> out;
    ForEachBlock(n, [&](int64_t i, int64_t count) {
      ConvertLoop(x + i, out.Values(y + i), count);
      out.Commit(y + i, count);
    });
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = ConvertElement<To>(x[i]);
  }
}

using ConvertRow = void (*)(const void* x, void* y, int64_t n);

// f(T{}) for any type that Cast knows.
template <class F>
ConvertRow DispatchCast(DType dtype, const F& f) {
  if (dtype == DType::kBool) return f(Bool8{});
  return DispatchTypes("Cast", dtype, NumericTypes{}, f);
}

ConvertRow FindConversion(DType from, DType to) {
  return DispatchCast(from, [&](auto from_type) {
    return DispatchCast(to, [&](auto to_type) -> ConvertRow {
      using From = decltype(from_type);
      using To = decltype(to_type);
      return
          [](const void* x, void* y, int64_t n) { ConvertLoop(static_cast<const From*>(x), static_cast<To*>(y), n); };
    });
  });
}

void LaunchCast(OpContext& ctx, const char* op, DType to) {
  const TensorView x = ctx.Input(0);
  NPU_CHECK(kFixedWidth.Contains(x.dtype), "[", op, "] expected a numeric or bool input, got ", NameOf(x.dtype));
  NPU_CHECK(kFixedWidth.Contains(to), "[", op, "] expected a numeric or bool target type, got ", NameOf(to));
  const TensorView y = ctx.Output(0, to, x.shape);
  const int64_t n = x.elements();
  if (n == 0 || (x.data == y.data && x.dtype == to)) return;
  const int64_t x_size = BitsOf(x.dtype) / 8;
  const int64_t y_size = BitsOf(to) / 8;
  const ConvertRow row = FindConversion(x.dtype, to);
  ctx.Launch(op, [row, n, x_size, y_size, px = x.as<const char>(), py = y.as<char>()] {
    ParallelFor(n, kCheapGrain,
                [=](int64_t begin, int64_t end) { row(px + begin * x_size, py + begin * y_size, end - begin); });
  });
}

class CastKernel : public Kernel {
 public:
  explicit CastKernel(const KernelInfo& info) : to_(static_cast<DType>(info.attributes.Int("to"))) {}
  void Compute(OpContext& ctx) const override { LaunchCast(ctx, "Cast", to_); }

 private:
  DType to_;
};

class CastLikeKernel : public Kernel {
 public:
  explicit CastLikeKernel(const KernelInfo&) {}
  void Compute(OpContext& ctx) const override { LaunchCast(ctx, "CastLike", ctx.Input(1).dtype); }
};

// The attributes saturate and round_mode only speak of 8-bit floats, which are not among the types.
NPU_ONNX_KERNEL({
    .type = "Cast",
    .since = 6,
    .until = 25,
    .inputs = {Input("input", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {RequiredInt("to"), IntAttribute("saturate", 1), StringAttribute("round_mode", "up")},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<CastKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const int64_t to = node.attributes.Int("to");
      if (to > 0 && to < 64 && kFixedWidth.Contains(static_cast<DType>(to))) return "";
      return Concat("Cast to ONNX type ", to, " is not implemented");
    },
});
NPU_ONNX_KERNEL({
    .type = "CastLike",
    .since = 15,
    .until = 25,
    .inputs = {Input("input", kFixedWidth), Input("target_type", kFixedWidth)},
    .outputs = {Output("output", kFixedWidth)},
    .attributes = {IntAttribute("saturate", 1), StringAttribute("round_mode", "up")},
    .make = MakeKernel<CastLikeKernel>,
});

}  // namespace
}  // namespace npu
