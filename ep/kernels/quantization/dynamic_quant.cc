#include "ep/kernels/quantization/dynamic_quant.h"

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/groups.h"
#include "ep/kernels/quantization/smooth_rows.h"
#include "ep/kernels/quantization/symmetric_rows.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {
namespace {

// What a launch works on: `outer` matrices of `rows` x `columns` values, and where the results are stored.
struct Problem {
  const char* op;
  bool asymmetric;
  QuantizedType type;
  TensorView input, smooth, groups;
  int64_t outer = 0, rows = 0, columns = 0;
  int64_t* ends = nullptr;  // of the groups, checked; null without groups
  // Null where the caller has no use for them.
  char* y = nullptr;
  float *scale = nullptr, *offset = nullptr;
};

struct ScaleAndOffset {
  float scale, offset;
};

// The scale and the offset that spread a range of values over the integers.
ScaleAndOffset ScaleOf(const Problem& p, float low, float high, uint32_t magnitude) {
  const float top = p.type == QuantizedType::kInt4 ? 7.0f : 127.0f;
  if (!p.asymmetric) return {std::bit_cast<float>(magnitude) / top, 0.0f};
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (magnitude > 0x7f800000u) return {kNan, kNan};
  if (low == high) {  // the range of one value begins or ends at 0
    low = std::min(low, 0.0f);
    high = std::max(high, 0.0f);
  }
  const float scale = (high - low) / (2.0f * top + 1.0f);
  return {scale, scale == 0.0f ? 0.0f : top - high / scale};
}

ScaleAndOffset ScaleOf(const Problem& p, const Extremes& range) {
  return ScaleOf(p, range.low, range.high, range.magnitude);
}

// The values of rows of a matrix times their smooth scales, where every row has one smooth scale.
class SmoothMatrixRows {
 public:
  explicit SmoothMatrixRows(const Problem& p) : p_(p) {}
  const float* Load(int64_t matrix, int64_t row, int64_t column, int64_t count) {
    const float* x = values_.Load(p_.input, (matrix * p_.rows + row) * p_.columns + column, count);
    if (!p_.smooth) return x;
    const float s = *scale_.Load(p_.smooth, row, 1);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) product_[i] = x[i] * s;
    return product_;
  }

 private:
  const Problem& p_;
  FloatBlock values_, scale_;
  alignas(64) float product_[kRowBlock];
};

// The values of a row times the smooth scales of its group.
SmoothRows RowsOf(const Problem& p, int64_t row) {
  return {p.input, p.smooth, p.columns, p.ends == nullptr ? 0 : GroupOf(p.ends, p.smooth.shape[0], row)};
}

void StoreScale(const Problem& p, int64_t at, ScaleAndOffset made) {
  if (p.scale) p.scale[at] = made.scale;
  if (p.offset) p.offset[at] = made.offset;
}

void Quantize(const Problem& p, const float* x, RowParameter scale, RowParameter offset, int64_t at, int64_t count) {
  QuantizeBlock(QuantizeBy::kDivisionRoundedAtEnd, p.type, x, scale, offset, p.y + BytesOf(p.type, at), count);
}

bool IsPlain(const Problem& p) {
  return !p.asymmetric && p.type == QuantizedType::kInt8 && p.ends == nullptr && p.y != nullptr &&
         kFloats.Contains(p.input.dtype);
}

void PerPlainToken(const Problem& p) {
  DispatchFloats(p.op, p.input.dtype, [&](auto tag) {
    using T = decltype(tag);
    ParallelFor(p.outer * p.rows, RowGrain(p.columns), [&p](int64_t begin, int64_t end) {
      RowScratch smooth(p.columns);
      if (p.smooth) ConvertToFloats(p.smooth, smooth.values());
      SymmetricRows<T> rows(p.smooth ? smooth.values() : nullptr, p.columns);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * p.columns;
        const float scale = rows.Run(p.input.as<const T>() + at, reinterpret_cast<int8_t*>(p.y) + at);
        StoreScale(p, row, {scale, 0.0f});
      }
    });
  });
}

void PerToken(const Problem& p) {
  if (IsPlain(p)) return PerPlainToken(p);
  ParallelFor(p.outer * p.rows, RowGrain(p.columns), [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      SmoothRows rows = RowsOf(p, row);
      Extremes range;
      ForEachBlock(p.columns, [&](int64_t at, int64_t n) { range.Add(rows.Load(row, at, n), n); });
      const ScaleAndOffset made = ScaleOf(p, range);
      StoreScale(p, row, made);
      if (p.y == nullptr) continue;
      ForEachBlock(p.columns, [&](int64_t at, int64_t n) {
        Quantize(p, rows.Load(row, at, n), {&made.scale, false}, {&made.offset, false}, row * p.columns + at, n);
      });
    }
  });
}

void PerTensor(const Problem& p, Extremes* partial) {
  const int64_t rows = p.outer * p.rows, pieces = PiecesOf(p.columns);
  ForEachPiece(rows, p.columns, [&](int64_t row, int64_t begin, int64_t count) {
    SmoothRows values = RowsOf(p, row);
    Extremes range;
    ForEachBlock(count, [&](int64_t at, int64_t n) { range.Add(values.Load(row, begin + at, n), n); });
    partial[row * pieces + begin / kPiece] = range;
  });
  Extremes range;
  for (int64_t i = 0; i < rows * pieces; ++i) range.Add(partial[i]);
  const ScaleAndOffset made = ScaleOf(p, range);
  StoreScale(p, 0, made);
  if (p.y == nullptr) return;
  ForEachPiece(rows, p.columns, [&](int64_t row, int64_t begin, int64_t count) {
    SmoothRows values = RowsOf(p, row);
    ForEachBlock(count, [&](int64_t at, int64_t n) {
      const int64_t column = begin + at;
      Quantize(p, values.Load(row, column, n), {&made.scale, false}, {&made.offset, false}, row * p.columns + column,
               n);
    });
  });
}

// A block of columns of a matrix, all its rows.
void QuantizeColumns(const Problem& p, int64_t matrix, int64_t column, int64_t count) {
  SmoothMatrixRows values(p);
  alignas(64) float low[kRowBlock], high[kRowBlock], scale[kRowBlock], offset[kRowBlock];
  alignas(64) uint32_t magnitude[kRowBlock];
  std::fill_n(low, count, std::numeric_limits<float>::infinity());
  std::fill_n(high, count, -std::numeric_limits<float>::infinity());
  std::fill_n(magnitude, count, 0u);
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* x = values.Load(matrix, row, column, count);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = MagnitudeBits(x[i]);
      low[i] = x[i] < low[i] ? x[i] : low[i];
      high[i] = x[i] > high[i] ? x[i] : high[i];
      magnitude[i] = bits > magnitude[i] ? bits : magnitude[i];
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const ScaleAndOffset made = ScaleOf(p, low[i], high[i], magnitude[i]);
    StoreScale(p, matrix * p.columns + column + i, made);
    scale[i] = made.scale;
    offset[i] = made.offset;
  }
  if (p.y == nullptr) return;
  for (int64_t row = 0; row < p.rows; ++row) {
    const int64_t at = (matrix * p.rows + row) * p.columns + column;
    Quantize(p, values.Load(matrix, row, column, count), {scale, true}, {offset, true}, at, count);
  }
}

void PerChannel(const Problem& p) {
  const int64_t blocks = (p.columns + kRowBlock - 1) / kRowBlock;
  ParallelFor(p.outer * blocks, RowGrain(p.rows * std::min(p.columns, kRowBlock)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % blocks * kRowBlock;
      QuantizeColumns(p, i / blocks, column, std::min(kRowBlock, p.columns - column));
    }
  });
}

}  // namespace

DynamicQuant::DynamicQuant(const char* op, bool asymmetric, const KernelInfo& info)
    : op_(op),
      asymmetric_(asymmetric),
      type_(QuantizedType::kInt8),
      mode_name_(info.attributes.String("quant_mode")),
      type_max_(info.attributes.Float("dst_type_max")) {
  if (info.attributes.Has("dst_type")) {
    // torch_npu writes 2 for int8 and 3, the type of the storage, for int4.
    type_ = QuantizedTypeOf(op, "dst_type", info.attributes.Int("dst_type"),
                            {{TypeCode::kInt8, QuantizedType::kInt8}, {TypeCode::kInt32, QuantizedType::kInt4}});
  }
  NPU_OP_CHECK(op, mode_name_ == "pertoken" || mode_name_ == "perchannel" || mode_name_ == "pertensor",
               "expected quant_mode pertoken, perchannel or pertensor, got '", mode_name_, "'");
  mode_ = mode_name_ == "pertoken"     ? Mode::kPerToken
          : mode_name_ == "perchannel" ? Mode::kPerChannel
                                       : Mode::kPerTensor;
  NPU_OP_CHECK(op, type_max_ == 0.0, "expected dst_type_max 0, the range of dst_type, got ", type_max_);
}

void DynamicQuant::CheckSmoothScales(const TensorView& input, const TensorView& smooth,
                                     const TensorView& groups) const {
  const int rank = input.shape.rank();
  const int64_t columns = input.shape[rank - 1], rows = input.shape[rank - 2];
  if (groups) {
    NPU_OP_CHECK(op_, mode_ != Mode::kPerChannel, "expected no group_index with quant_mode perchannel");
    NPU_OP_CHECK(op_, smooth, "expected smooth_scales with group_index");
    NPU_OP_CHECK(op_, smooth.shape.rank() == 2 && smooth.shape[0] > 0 && smooth.shape[1] == columns,
                 "expected smooth_scales [E, ", columns, "] with group_index, got ", smooth.shape);
    NPU_OP_CHECK(op_, groups.shape == Shape{smooth.shape[0]}, "expected group_index [", smooth.shape[0], "], got ",
                 groups.shape);
  } else if (smooth && mode_ == Mode::kPerChannel) {
    NPU_OP_CHECK(op_, smooth.shape == Shape{rows} || (smooth.shape == Shape{rows, 1}), "expected smooth_scales [", rows,
                 "] or [", rows, ", 1] with quant_mode perchannel, got ", smooth.shape);
  } else if (smooth) {
    NPU_OP_CHECK(op_, smooth.shape == Shape{columns}, "expected smooth_scales [", columns, "], got ", smooth.shape);
  }
}

Shape DynamicQuant::ScaleShape(const Shape& input) const {
  if (mode_ == Mode::kPerTensor) return {1};
  const int dropped = input.rank() - (mode_ == Mode::kPerToken ? 1 : 2);
  Shape shape;
  for (int i = 0; i < input.rank(); ++i)
    if (i != dropped) shape.push_back(input[i]);
  return shape;
}

void DynamicQuant::Compute(OpContext& ctx) const {
  const TensorView input = ctx.Input(0), smooth = ctx.Input(1), groups = ctx.Input(2);
  const Shape& shape = input.shape;
  const int rank = shape.rank();
  NPU_OP_CHECK(op_, input && rank >= 2, "expected input of rank >= 2, got ", shape);
  const int64_t reduced = mode_ == Mode::kPerToken     ? shape[rank - 1]
                          : mode_ == Mode::kPerChannel ? shape[rank - 2]
                                                       : input.elements();
  NPU_OP_CHECK(op_, reduced > 0, "expected input with values to take a scale from, got ", shape);
  const Shape stored = StoredShape(op_, "input", shape, type_);
  CheckSmoothScales(input, smooth, groups);

  Problem p{.op = op_, .asymmetric = asymmetric_, .type = type_, .input = input, .smooth = smooth, .groups = groups};
  p.columns = shape[rank - 1];
  p.rows = shape[rank - 2];
  p.outer = shape.Elements(0, rank - 2);
  p.ends =
      groups ? static_cast<int64_t*>(ctx.Workspace(static_cast<size_t>(groups.elements()) * sizeof(int64_t))) : nullptr;
  p.y = ctx.Output(0, StorageOf(type_), stored).as<char>();
  const Shape scales = ScaleShape(shape);
  p.scale = ctx.Output(1, DType::kFloat32, scales).as<float>();
  p.offset = asymmetric_ ? ctx.Output(2, DType::kFloat32, scales).as<float>() : nullptr;
  Extremes* partial = nullptr;
  if (mode_ == Mode::kPerTensor) {
    const auto pieces = static_cast<size_t>(p.outer * p.rows * PiecesOf(p.columns));
    partial = static_cast<Extremes*>(ctx.Workspace(pieces * sizeof(Extremes)));
  }
  ctx.Launch(op_, [p, mode = mode_, partial] {
    if (p.groups) CheckGroups(p.op, p.groups, p.outer * p.rows, p.ends);
    if (mode == Mode::kPerToken) return PerToken(p);
    if (mode == Mode::kPerChannel) return PerChannel(p);
    PerTensor(p, partial);
  });
}

}  // namespace npu
