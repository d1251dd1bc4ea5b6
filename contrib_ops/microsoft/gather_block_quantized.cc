// GatherBlockQuantized: a Gather of integers or narrow floats that returns them as floats, with a scale and a zero
// point for each block along an axis.
#include <algorithm>
#include <string>

#include "contrib_ops/microsoft/integer_bits.h"
#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/elementwise/narrow.h"
#include "ep/kernels/indexing/index.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "GatherBlockQuantized";
constexpr DTypeSet kInt4Types{DType::kInt4, DType::kUInt4};
constexpr DTypeSet kData = kNarrowFloats | kInt4Types | DTypeSet{DType::kUInt8};

// Integers of `bits` in bytes, or elements of a narrow type, as floats.
struct Elements {
  TensorView view;
  int64_t bits;

  // Elements [first, first + n), n <= kRowBlock.
  void Load(int64_t first, int64_t n, float* to) const {
    if (view.dtype == DType::kUInt8) {
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(BitsAt(view.as<const uint8_t>(), bits, first + i));
      return;
    }
    if (BitsOf(view.dtype) == 8 || first % 2 == 0) return UpcastNarrow(view.dtype, view.data, first, n, to);
    alignas(64) float shifted[kRowBlock + 1];  // UpcastNarrow begins with a byte
    UpcastNarrow(view.dtype, view.data, first - 1, n + 1, shifted);
    std::copy_n(shifted + 1, n, to);
  }
};

// Which scale an element has.
struct ScaleOf {
  Shape shape;                            // of the elements
  int axis = 0;                           // along which blocks are
  int64_t block = 1;                      // elements of one
  int64_t strides[Shape::kMaxRank] = {};  // of the scales along each axis; 0: one for all

  struct Run {
    int64_t first, step, count;  // scales of the next `count` elements
  };
  // From element `at` on, to the end of a block or of the last axis.
  Run At(int64_t at) const {
    const int last = shape.rank() - 1;
    Run run{0, strides[last], 0};
    int64_t rest = at;
    for (int d = last; d >= 0; --d) {
      const int64_t place = rest % shape[d];
      rest /= shape[d];
      run.first += (d == axis ? place / block : place) * strides[d];
      if (d == last) run.count = shape[d] - place;
      if (d == last && d == axis) {
        run.count = std::min(run.count, block - place % block);
        run.step = 0;
      }
    }
    return run;
  }
};

class GatherBlockQuantizedKernel final : public Kernel {
 public:
  explicit GatherBlockQuantizedKernel(const KernelInfo& info)
      : gather_axis_(info.attributes.Int("gather_axis")),
        quantize_axis_(info.attributes.Int("quantize_axis")),
        block_(info.attributes.Int("block_size")),
        bits_(info.attributes.Int("bits")) {
    NPU_OP_CHECK(kOp, bits_ == 2 || bits_ == 4 || bits_ == 8, "expected bits of 2, 4 or 8, got ", bits_);
    NPU_OP_CHECK(kOp, block_ == 0 || (block_ >= 16 && (block_ & (block_ - 1)) == 0),
                 "expected a block_size that is a power of 2 from 16 on, or 0, got ", block_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView data = ctx.Input(0), indices = ctx.Input(1), scales = ctx.Input(2), points = ctx.Input(3);
    const int rank = data.shape.rank();
    const bool in_bytes = data.dtype == DType::kUInt8;
    NPU_OP_CHECK(kOp, rank >= 1, "expected data of rank 1 or more, got a scalar");
    Shape logical = data.shape;
    if (in_bytes)
      NPU_OP_CHECK(kOp, !__builtin_mul_overflow(logical[rank - 1], 8 / bits_, &logical[rank - 1]),
                   "expected data that fits the address space, got ", data.shape);
    const int axis = NormalizeAxis(kOp, gather_axis_, rank);
    const ScaleOf scale_of = ScaleLayout(logical, data.dtype, scales.shape);
    NPU_OP_CHECK(kOp, !in_bytes || (axis == 0 && (bits_ == 8 || scale_of.axis != 0)),
                 "expected gather_axis 0 and another quantize_axis for data of uint8, got ", axis, " and ",
                 scale_of.axis);
    const int64_t middle = in_bytes ? int64_t{1} << (bits_ - 1) : 0;
    if (points) CheckPoints(points, data.dtype, scales.shape);
    Shape shape(logical.begin(), static_cast<size_t>(axis));
    for (const int64_t d : indices.shape) shape.push_back(d);
    for (int d = axis + 1; d < rank; ++d) shape.push_back(logical[d]);
    const TensorView y = ctx.Output(0, scales.dtype, shape);
    if (y.elements() == 0) return;
    const int64_t count = indices.elements(), n = logical[axis], inner = logical.Elements(axis + 1, rank);
    const int64_t rows = logical.Elements(0, axis) * count;
    const Elements from{data, bits_}, zeros{points, bits_};
    // Zero points in bytes: rows along the last axis are padded to whole bytes.
    const int64_t row = scales.shape.back(), padded = in_bytes ? (row * bits_ + 7) / 8 * 8 / bits_ : row;
    DispatchIndices(kOp, indices, [&](auto index_type) {
      using Index = decltype(index_type);
      DispatchFloats(kOp, scales.dtype, [&](auto type) {
        using T = decltype(type);
        ctx.Launch(kOp, [=, at = indices.as<const Index>(), step = scales.as<const T>(), to = y.as<T>()] {
          ParallelFor(rows, RowGrain(inner), [&](int64_t begin, int64_t end) {
            alignas(64) float values[kRowBlock];
            for (int64_t r = begin; r < end; ++r) {
              const int64_t source = (r / count * n + CheckedIndex(kOp, at, r % count, n)) * inner;
              for (int64_t done = 0; done < inner;) {
                ScaleOf::Run run = scale_of.At(source + done);
                run.count = std::min({run.count, inner - done, kRowBlock});
                from.Load(source + done, run.count, values);
                for (int64_t i = 0; i < run.count; ++i) {
                  const int64_t s = run.first + i * run.step;
                  float zero = static_cast<float>(middle);
                  if (zeros.view) zeros.Load(s / row * padded + s % row, 1, &zero);
                  values[i] = (values[i] - zero) * ToFloat(step[s]);
                }
                FromFloat(values, to + r * inner + done, run.count);
                done += run.count;
              }
            }
          });
        });
      });
    });
  }

 private:
  ScaleOf ScaleLayout(const Shape& logical, DType dtype, const Shape& scales) const {
    ScaleOf out;
    out.shape = logical;
    out.axis = NormalizeAxis(kOp, quantize_axis_, logical.rank());
    const bool floats = kNarrowFloats.Contains(dtype);
    const int64_t length = logical[out.axis];
    NPU_OP_CHECK(kOp, block_ != 0 || floats, "expected a block_size for data of ", NameOf(dtype), ", got 0");
    out.block = block_ == 0 ? std::max<int64_t>(1, length) : block_;
    Shape wanted = logical;
    wanted[out.axis] = length / out.block + (length % out.block != 0 ? 1 : 0);
    bool fits = scales.rank() == wanted.rank();
    int64_t stride = 1;
    for (int d = wanted.rank() - 1; fits && d >= 0; --d) {
      const bool one = floats && d != out.axis && scales[d] == 1;
      fits = one || scales[d] == wanted[d];
      out.strides[d] = one ? 0 : stride;
      stride *= scales[d];
    }
    NPU_OP_CHECK(kOp, fits, "expected scales of shape ", wanted, " for blocks of ", out.block, ", got ", scales);
    return out;
  }

  void CheckPoints(const TensorView& points, DType dtype, const Shape& scales) const {
    Shape wanted = scales;
    if (dtype == DType::kUInt8) wanted[wanted.rank() - 1] = (scales.back() * bits_ + 7) / 8;
    NPU_OP_CHECK(kOp, !kNarrowFloats.Contains(dtype) && points.dtype == dtype && points.shape == wanted,
                 "expected zero_points of ", NameOf(dtype), " ", wanted, " for integers, got ", NameOf(points.dtype),
                 " ", points.shape);
  }

  int64_t gather_axis_, quantize_axis_, block_, bits_;
};

NPU_ONNX_KERNEL(Microsoft({
    .type = kOp,
    .inputs = {Input("data", kData), Input("indices", kIndices), Input("scales", kFloats),
               OptionalInput("zero_points", kData)},
    .outputs = {Output("output", kFloats)},
    .attributes = {IntAttribute("gather_axis", 0), IntAttribute("quantize_axis", 1), IntAttribute("block_size", 128),
                   IntAttribute("bits", 4)},
    .make = MakeKernel<GatherBlockQuantizedKernel>,
}));

}  // namespace
}  // namespace npu
