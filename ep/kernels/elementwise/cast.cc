// Cast and CastLike between the fixed-width types and the narrow ones, down to 2-bit integers. Floats become integers
// as SafeCast says, everything that is not zero becomes true; 16-bit floats and narrower types go through float.
#include <algorithm>
#include <string>

#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
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

// Where one of the types is narrow: a block at a time through floats. Wide integers that become narrow ones are cut to
// bytes first, so that floats hold them.
void LaunchNarrowCast(OpContext& ctx, const char* op, const TensorView& x, const TensorView& y, Narrowing how) {
  const bool cut = kIntegers.Contains(x.dtype) && kNarrowIntegers.Contains(y.dtype);
  const ConvertRow to_bytes = cut ? FindConversion(x.dtype, DType::kInt8) : nullptr;
  const ConvertRow upcast =
      kNarrow.Contains(x.dtype) ? nullptr : FindConversion(cut ? DType::kInt8 : x.dtype, DType::kFloat32);
  const ConvertRow store = kNarrow.Contains(y.dtype) ? nullptr : FindConversion(DType::kFloat32, y.dtype);
  const int64_t n = x.elements(), x_size = BitsOf(x.dtype) / 8, y_size = BitsOf(y.dtype) / 8;
  ctx.Launch(op, [=] {
    ParallelFor((n + kRowBlock - 1) / kRowBlock, 16, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kRowBlock];
      alignas(64) int8_t bytes[kRowBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kRowBlock, count = std::min(kRowBlock, n - first);
        const char* from = x.as<const char>() + first * x_size;
        if (upcast == nullptr) {
          UpcastNarrow(x.dtype, x.data, first, count, values);
        } else if (cut) {
          to_bytes(from, bytes, count);
          upcast(bytes, values, count);
        } else {
          upcast(from, values, count);
        }
        if (store == nullptr) {
          NarrowFloats(y.dtype, how, values, first, count, y.data);
        } else {
          store(values, y.as<char>() + first * y_size, count);
        }
      }
    });
  });
}

void LaunchCast(OpContext& ctx, const char* op, DType to, Narrowing how) {
  const TensorView x = ctx.Input(0);
  NPU_OP_CHECK(op, kAnyWidth.Contains(x.dtype), "expected a numeric or bool input, got ", NameOf(x.dtype));
  NPU_OP_CHECK(op, kAnyWidth.Contains(to), "expected a numeric or bool target type, got ", NameOf(to));
  const TensorView y = ctx.Output(0, to, x.shape);
  const int64_t n = x.elements();
  if (n == 0) return;
  if (x.dtype == to) return LaunchCopy(ctx, op, x, y);
  if (kNarrow.Contains(x.dtype) || kNarrow.Contains(to)) return LaunchNarrowCast(ctx, op, x, y, how);
  const int64_t x_size = BitsOf(x.dtype) / 8;
  const int64_t y_size = BitsOf(to) / 8;
  const ConvertRow row = FindConversion(x.dtype, to);
  ctx.Launch(op, [row, n, x_size, y_size, px = x.as<const char>(), py = y.as<char>()] {
    ParallelFor(n, kCheapGrain,
                [=](int64_t begin, int64_t end) { row(px + begin * x_size, py + begin * y_size, end - begin); });
  });
}

Narrowing NarrowingOf(const char* op, const Attributes& attributes) {
  using Power = Narrowing::Power;
  const std::string mode = attributes.String("round_mode");
  NPU_OP_CHECK(op, mode == "up" || mode == "down" || mode == "nearest", "expected round_mode up, down or nearest, got ",
               mode);
  return {attributes.Bool("saturate"), mode == "up" ? Power::kUp : mode == "down" ? Power::kDown : Power::kNearest};
}

class CastKernel : public Kernel {
 public:
  explicit CastKernel(const KernelInfo& info)
      : to_(static_cast<DType>(info.attributes.Int("to"))), how_(NarrowingOf("Cast", info.attributes)) {}
  void Compute(OpContext& ctx) const override { LaunchCast(ctx, "Cast", to_, how_); }

 private:
  DType to_;
  Narrowing how_;
};

class CastLikeKernel : public Kernel {
 public:
  explicit CastLikeKernel(const KernelInfo& info) : how_(NarrowingOf("CastLike", info.attributes)) {}
  void Compute(OpContext& ctx) const override { LaunchCast(ctx, "CastLike", ctx.Input(1).dtype, how_); }

 private:
  Narrowing how_;
};

NPU_ONNX_KERNEL({
    .type = "Cast",
    .since = 6,
    .until = 25,
    .inputs = {Input("input", kAnyWidth)},
    .outputs = {Output("output", kAnyWidth)},
    .attributes = {RequiredInt("to"), IntAttribute("saturate", 1), StringAttribute("round_mode", "up")},
    .shape_arithmetic = ShapeArithmetic::kFirst,
    .make = MakeKernel<CastKernel>,
    .unsupported = [](const NodeView& node) -> std::string {
      const int64_t to = node.attributes.Int("to");
      if (to > 0 && to < 64 && kAnyWidth.Contains(static_cast<DType>(to))) return "";
      return Concat("Cast to ONNX type ", to, " is not implemented");
    },
});
NPU_ONNX_KERNEL({
    .type = "CastLike",
    .since = 15,
    .until = 25,
    .inputs = {Input("input", kAnyWidth), Input("target_type", kAnyWidth)},
    .outputs = {Output("output", kAnyWidth)},
    .attributes = {IntAttribute("saturate", 1), StringAttribute("round_mode", "up")},
    .make = MakeKernel<CastLikeKernel>,
});

}  // namespace
}  // namespace npu
