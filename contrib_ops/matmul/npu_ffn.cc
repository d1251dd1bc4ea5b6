// npu_ffn(x, weight1, weight2, bias1?, bias2?, scale?, offset?, deq_scale1?, deq_scale2?, antiquant_scale1?,
// antiquant_scale2?, antiquant_offset1?, antiquant_offset2?; activation, expert_tokens, expert_tokens_index,
// inner_precise, output_dtype) -> y. The semantics are in npu_ffn.py.
#include "contrib_ops/matmul/npu_ffn.h"

#include <algorithm>
#include <cctype>

#include "ep/kernels/activation/row_activation.h"
#include "ep/kernels/float16_rounding.h"
#include "ep/kernels/matmul/grouped_weight.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/quantization/scale_values.h"
#include "ep/kernels/quantization/type_code.h"

namespace npu {
namespace {

using In = nodes::NPUFFN::In;
using Out = nodes::NPUFFN::Out;

constexpr const char* kOp = "npu_ffn";
constexpr size_t kMostExperts = 256;

struct Activation {
  const char* name;
  RowActivation apply;
  bool gates;  // the second half of the columns by the first
};

constexpr Activation kActivations[] = {
    {"fastgelu", &ActivateRow<FastGelu>, false}, {"gelu", &ActivateRow<GeluErf>, false},
    {"relu", &ActivateRow<Relu>, false},         {"silu", &ActivateRow<Silu>, false},
    {"geglu", &ActivateRow<GeluErf>, true},      {"swiglu", &ActivateRow<Silu>, true},
    {"reglu", &ActivateRow<Relu>, true},
};

const Activation& ActivationOf(const std::string& given) {
  std::string name = given;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Activation& each : kActivations)
    if (name == each.name) return each;
  Fail(ErrorCode::kInvalidArgument, "[", kOp,
       "] expected activation to be one of fastgelu, gelu, relu, silu, geglu, swiglu, reglu, got '", given, "'");
}

std::string Listed(const std::vector<int64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return out + "]";
}

// The rows of every expert, from their numbers or their ends.
struct Experts {
  std::vector<int64_t> given, counts;

  explicit Experts(const Attributes& attributes) {
    const std::vector<int64_t> ends = attributes.Ints("expert_tokens_index");
    given = counts = attributes.Ints("expert_tokens");
    NPU_OP_CHECK(kOp, given.empty() || ends.empty(), "expected expert_tokens or expert_tokens_index, got both of them");
    if (ends.empty()) return;
    given = counts = ends;
    for (size_t i = 1; i < ends.size(); ++i)
      if (__builtin_sub_overflow(ends[i], ends[i - 1], &counts[i])) counts[i] = -1;  // refused below
  }

  void Check(int64_t rows, int64_t weights) const {
    NPU_OP_CHECK(kOp, given.size() <= kMostExperts && weights == static_cast<int64_t>(given.size()),
                 "expected at most ", kMostExperts, " experts and weights of each, got ", given.size(),
                 " numbers and weights of ", weights);
    int64_t left = rows;
    bool fit = true;
    for (const int64_t count : counts) {
      fit = fit && count >= 0 && count <= left;
      left -= fit ? count : 0;
    }
    NPU_OP_CHECK(kOp, fit && left == 0, "expected the experts to share ", rows, " rows of x, got ", Listed(given));
  }
};

DType ResultOf(const Attributes& attributes) {
  if (!attributes.Has("output_dtype")) return DType::kUndefined;
  return ElementTypeOf(kOp, "output_dtype", attributes.Int("output_dtype"), {TypeCode::kFloat16, TypeCode::kBFloat16});
}

enum class Scheme { kFloats, kWeightOnly, kInt8 };

const char* TitleOf(Scheme scheme) {
  switch (scheme) {
    case Scheme::kFloats:
      return "x and weights of floats";
    case Scheme::kWeightOnly:
      return "x of floats and weights of int8";
    case Scheme::kInt8:
      return "x and weights of int8";
  }
  return "";
}

Scheme SchemeOf(DType x, DType first, DType second) {
  const bool same = first == second;
  if (gemm::Supports(x) && same && first == x) return Scheme::kFloats;
  if (gemm::Supports(x) && same && first == DType::kInt8) return Scheme::kWeightOnly;
  NPU_OP_CHECK(kOp, x == DType::kInt8 && same && first == x,
               "expected x and weights of one dtype, or x of floats and weights of int8, got ", NameOf(x), ", ",
               NameOf(first), " and ", NameOf(second));
  return Scheme::kInt8;
}

// Throws unless `values`, if present, are for each of `columns` or, if `one` may be, for all of them.
void CheckShape(const char* name, const TensorView& values, const Experts& experts, int64_t columns, bool one) {
  if (!values) return;
  const int64_t count = static_cast<int64_t>(experts.given.size());
  std::vector<Shape> allowed;
  if (one) allowed.push_back(count == 0 ? Shape{1} : Shape({count, 1}));
  if (columns > 0 || !one) allowed.push_back(count == 0 ? Shape{columns} : Shape({count, columns}));
  if (one && count > 0) allowed.push_back(Shape{count});
  if (std::find(allowed.begin(), allowed.end(), values.shape) != allowed.end()) return;
  std::string shapes;
  for (const Shape& shape : allowed) shapes += (shapes.empty() ? "" : " or ") + shape.ToString();
  Fail(ErrorCode::kInvalidArgument, "[", kOp, "] expected ", name, " of shape ", shapes, ", got ", values.shape);
}

// A matmul and what belongs to its columns.
struct Layer {
  TensorView weight, bias, deq_scale, antiquant_scale, antiquant_offset;
  GroupedWeight::Layout layout;
  ScaleValues factors;  // deq_scale

  gemm::Epilogue EpilogueOf(int64_t expert) const {
    gemm::Epilogue epilogue;
    const int64_t at = expert * layout.n;
    if (deq_scale) epilogue.column_scale = {factors.data() + at, 1};
    if (bias) epilogue.AddBias(bias, at);
    return epilogue;
  }

  gemm::Dequantization DequantizationOf(int64_t expert) const {
    if (!antiquant_scale) return {};
    const size_t at = BytesFor(antiquant_scale.dtype, expert * layout.n);
    return {.scale = antiquant_scale.as<char>() + at,
            .offset = antiquant_offset ? antiquant_offset.as<char>() + at : nullptr,
            .dtype = antiquant_scale.dtype,
            .column_stride = 1};
  }
};

// A call after its checks: what the launch needs.
struct Call {
  Scheme scheme = Scheme::kFloats;
  TensorView x, scale, offset, y;
  Layer layers[2];
  int64_t m = 0;
  // Between the layers, of one expert: the first product, and the operand of the second where that is another buffer.
  void *product = nullptr, *hidden = nullptr;
  DType product_dtype = DType::kUndefined;
};

class FfnKernel final : public Kernel {
 public:
  explicit FfnKernel(const KernelInfo& info)
      : activation_(ActivationOf(info.attributes.String("activation"))),
        experts_(info.attributes),
        result_(ResultOf(info.attributes)) {
    const int64_t precise = info.attributes.Int("inner_precise", 0);
    NPU_OP_CHECK(kOp, precise == 0 || precise == 1, "expected inner_precise 0 or 1, got ", precise);
    if (!info.input_dtypes.empty()) x_dtype_ = info.input_dtypes[In::x];
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    const int rank = experts_.given.empty() ? 2 : 3;
    if ((input != In::weight1 && input != In::weight2) || constant.shape.rank() != rank) return false;
    if (constant.dtype != x_dtype_ && !(gemm::Supports(x_dtype_) && constant.dtype == DType::kInt8)) return false;
    Packed& packed = packed_[input == In::weight1 ? 0 : 1];
    const int64_t k = constant.shape[rank - 2];
    packed.weight.Pack(kOp, constant, GroupedWeight::LayoutOf(kOp, constant, x_dtype_, k), stream);
    packed.view = constant;
    packed.view.data = nullptr;
    return true;
  }

  void Compute(OpContext& ctx) const override {
    Call call;
    call.x = ctx.Input(In::x);
    call.scale = ctx.Input(In::scale);
    call.offset = ctx.Input(In::offset);
    call.layers[0] = {WeightOf(ctx, 0),
                      ctx.Input(In::bias1),
                      ctx.Input(In::deq_scale1),
                      ctx.Input(In::antiquant_scale1),
                      ctx.Input(In::antiquant_offset1),
                      {},
                      {}};
    call.layers[1] = {WeightOf(ctx, 1),
                      ctx.Input(In::bias2),
                      ctx.Input(In::deq_scale2),
                      ctx.Input(In::antiquant_scale2),
                      ctx.Input(In::antiquant_offset2),
                      {},
                      {}};
    CheckOperands(call);
    const bool integers = call.scheme == Scheme::kInt8;
    Layer &first = call.layers[0], &second = call.layers[1];
    const DType dtype = !integers ? call.x.dtype : result_ == DType::kUndefined ? DType::kFloat16 : result_;
    Shape shape = call.x.shape;
    shape[shape.rank() - 1] = second.layout.n;
    call.y = ctx.Output(Out::y, dtype, shape);
    if (!call.y || call.y.elements() == 0) return;
    if (integers)
      for (Layer& layer : call.layers) layer.factors = ScaleValues(ctx, layer.deq_scale);
    const std::vector<int64_t>& counts = experts_.counts;
    const int64_t rows = counts.empty() ? call.m : *std::max_element(counts.begin(), counts.end());
    const auto workspace = [&](DType of, int64_t columns) {
      const int64_t elements = (Shape{rows, columns}).Elements();
      return ctx.Workspace(std::max<size_t>(1, BytesFor(of, elements)));
    };
    // What is rounded only after the activation is kept in float32 until then.
    call.product_dtype = integers            ? (dtype == DType::kFloat16 ? dtype : DType::kFloat32)
                         : activation_.gates ? DType::kFloat32
                                             : call.x.dtype;
    call.product = workspace(call.product_dtype, first.layout.n);
    call.hidden = integers || activation_.gates ? workspace(call.x.dtype, second.layout.k) : call.product;
    ctx.Launch(kOp, [this, call] { Run(call); });
  }

 private:
  struct Packed {
    GroupedWeight weight;
    TensorView view;  // type and shape
  };

  TensorView WeightOf(OpContext& ctx, int layer) const {
    const Packed& packed = packed_[layer];
    return packed.weight ? packed.view : ctx.Input(layer == 0 ? In::weight1 : In::weight2);
  }

  void CheckOperands(Call& call) const {
    Layer &first = call.layers[0], &second = call.layers[1];
    const TensorView& x = call.x;
    NPU_OP_CHECK(kOp, x && first.weight && second.weight, "expected the tensors x, weight1 and weight2");
    const Shape &w1 = first.weight.shape, &w2 = second.weight.shape;
    const int rank = w1.rank();
    NPU_OP_CHECK(kOp, x.shape.rank() >= 2 && (rank == 2 || rank == 3) && w2.rank() == rank,
                 "expected x of rank 2 or more and weights of rank 2, or 3 with experts, got ", x.shape, ", ", w1,
                 " and ", w2);
    call.scheme = SchemeOf(x.dtype, first.weight.dtype, second.weight.dtype);
    CheckTensors(call);
    const int64_t k1 = x.shape.back(), n1 = w1.back(), k2 = w2[rank - 2];
    NPU_OP_CHECK(kOp, w1[rank - 2] == k1, "expected weight1 [.., ", k1, ", N1], got ", w1);
    int64_t columns = k2;
    NPU_OP_CHECK(kOp, (!activation_.gates || !__builtin_mul_overflow(k2, 2, &columns)) && n1 == columns,
                 "expected weight1 with ", columns, " columns for weight2 ", w2, " and '", activation_.name, "', got ",
                 w1);
    call.m = x.shape.Elements(0, x.shape.rank() - 1);
    const bool any = !experts_.given.empty();
    NPU_OP_CHECK(kOp, rank == (any ? 3 : 2), "expected weights of rank ", any ? "3 with" : "2 without",
                 " expert_tokens, got rank ", rank);
    if (any) {
      experts_.Check(call.m, w1[0]);
      NPU_OP_CHECK(kOp, w2[0] == w1[0], "expected weight2 of ", w1[0], " experts, got ", w2);
    }
    for (int i = 0; i < 2; ++i) {
      Layer& layer = call.layers[i];
      layer.layout = GroupedWeight::LayoutOf(kOp, layer.weight, x.dtype, i == 0 ? k1 : k2);
      const int64_t n = layer.layout.n;
      CheckShape(i == 0 ? "bias1" : "bias2", layer.bias, experts_, n, false);
      CheckShape(i == 0 ? "deq_scale1" : "deq_scale2", layer.deq_scale, experts_, n, false);
      CheckShape(i == 0 ? "antiquant_scale1" : "antiquant_scale2", layer.antiquant_scale, experts_, n, false);
      CheckShape(i == 0 ? "antiquant_offset1" : "antiquant_offset2", layer.antiquant_offset, experts_, n, false);
    }
    CheckShape("scale", call.scale, experts_, n1, true);
    CheckShape("offset", call.offset, experts_, 0, true);
  }

  void CheckTensors(const Call& call) const {
    const Scheme scheme = call.scheme;
    const char* title = TitleOf(scheme);
    const auto check = [&](const char* name, const TensorView& tensor, Scheme taken, bool needed) {
      NPU_OP_CHECK(kOp, !tensor || scheme == taken, "expected no ", name, " with ", title, ", got one");
      NPU_OP_CHECK(kOp, tensor || scheme != taken || !needed, "expected ", name, " with ", title, ", got none");
    };
    const Layer &first = call.layers[0], &second = call.layers[1];
    check("scale", call.scale, Scheme::kInt8, true);
    check("offset", call.offset, Scheme::kInt8, false);
    check("deq_scale1", first.deq_scale, Scheme::kInt8, true);
    check("deq_scale2", second.deq_scale, Scheme::kInt8, true);
    check("antiquant_scale1", first.antiquant_scale, Scheme::kWeightOnly, true);
    check("antiquant_scale2", second.antiquant_scale, Scheme::kWeightOnly, true);
    check("antiquant_offset1", first.antiquant_offset, Scheme::kWeightOnly, false);
    check("antiquant_offset2", second.antiquant_offset, Scheme::kWeightOnly, false);
    const bool integers = scheme == Scheme::kInt8;
    const std::pair<const char*, const TensorView&> biases[] = {{"bias1", first.bias}, {"bias2", second.bias}};
    for (const auto& [name, bias] : biases)
      NPU_OP_CHECK(kOp, !bias || (bias.dtype == DType::kInt32) == integers, "expected ", name, " of ",
                   integers ? "int32" : "floats", " with ", title, ", got ", NameOf(bias.dtype));
    const std::pair<const char*, const TensorView&> of_x[] = {{"antiquant_scale1", first.antiquant_scale},
                                                              {"antiquant_scale2", second.antiquant_scale},
                                                              {"antiquant_offset1", first.antiquant_offset},
                                                              {"antiquant_offset2", second.antiquant_offset}};
    for (const auto& [name, values] : of_x)
      NPU_OP_CHECK(kOp, !values || values.dtype == call.x.dtype, "expected ", name, " of x's dtype ",
                   NameOf(call.x.dtype), ", got ", NameOf(values.dtype));
    NPU_OP_CHECK(kOp, integers || result_ == DType::kUndefined || result_ == call.x.dtype,
                 "expected output_dtype of x's dtype ", NameOf(call.x.dtype), ", got ", NameOf(result_));
    NPU_OP_CHECK(kOp, !integers || !activation_.gates, "expected fastgelu, gelu, relu or silu with ", title, ", got '",
                 activation_.name, "'");
  }

  void Run(const Call& call) const {
    for (const Layer& layer : call.layers)
      if (layer.deq_scale) layer.factors.Load();
    if (experts_.counts.empty()) return RunExpert(call, 0, 0, call.m);
    int64_t begin = 0;
    for (size_t e = 0; e < experts_.counts.size(); ++e) {
      const int64_t count = experts_.counts[e];
      if (count > 0) RunExpert(call, static_cast<int64_t>(e), begin, count);
      begin += count;
    }
  }

  // Rows [begin, begin + count) of y, by the layers of one expert.
  void RunExpert(const Call& call, int64_t expert, int64_t begin, int64_t count) const {
    const Layer &first = call.layers[0], &second = call.layers[1];
    const int64_t k = first.layout.k, n1 = first.layout.n, n2 = second.layout.n;
    const char* x = call.x.as<char>() + BytesFor(call.x.dtype, begin * k);
    gemm::Epilogue epilogue = first.EpilogueOf(expert);
    if (call.hidden == call.product) epilogue.activation = activation_.apply;
    packed_[0].weight.Multiply(first.layout, first.weight.data, expert, gemm::Matrix::RowMajor(x, count, k),
                               {call.product, call.product_dtype, n1}, epilogue, first.DequantizationOf(expert));
    if (call.scheme == Scheme::kInt8) {
      Quantise(call, expert, count);
    } else if (activation_.gates) {
      Gate(call, count);
    }
    packed_[1].weight.Multiply(second.layout, second.weight.data, expert,
                               gemm::Matrix::RowMajor(call.hidden, count, second.layout.k),
                               {call.y.as<char>() + BytesFor(call.y.dtype, begin * n2), call.y.dtype, n2},
                               second.EpilogueOf(expert), second.DequantizationOf(expert));
  }

  void Gate(const Call& call, int64_t rows) const {
    const int64_t half = call.layers[1].layout.k;
    const float* product = static_cast<const float*>(call.product);
    DispatchFloats(kOp, call.x.dtype, [&](auto tag) {
      using T = decltype(tag);
      T* hidden = static_cast<T*>(call.hidden);
      ForEachPiece(rows, half, [&](int64_t row, int64_t begin, int64_t count) {
        ForEachBlock(count, [&](int64_t from, int64_t n) {
          const int64_t column = begin + from;
          const float* gate = product + row * 2 * half + column;
          const float* value = gate + half;
          alignas(64) float values[kRowBlock];
          std::copy(gate, gate + n, values);
          activation_.apply(values, n);
          for (int64_t i = 0; i < n; ++i) values[i] *= value[i];
          FromFloat(values, hidden + row * half + column, n);
        });
      });
    });
  }

  // The activation and its quantisation; with a result of float16 every step is rounded to that.
  void Quantise(const Call& call, int64_t expert, int64_t rows) const {
    const int64_t columns = call.layers[1].layout.k;
    const bool rounds = call.y.dtype == DType::kFloat16;
    const int64_t scales = experts_.counts.empty()
                               ? call.scale.elements()
                               : call.scale.elements() / static_cast<int64_t>(experts_.counts.size());
    const float* scale = call.scale.as<const float>() + expert * scales;
    const float* offset = call.offset ? call.offset.as<const float>() + expert : nullptr;
    const auto step = [rounds](float* values, int64_t n) {
      if (rounds) RoundToFloat16<kRowBlock>(values, n);
    };
    const TensorView product{call.product, call.product_dtype, true, Shape{rows, columns}};
    int8_t* hidden = static_cast<int8_t*>(call.hidden);
    constexpr float kOne = 1.0f, kZero = 0.0f;
    ForEachPiece(rows, columns, [&](int64_t row, int64_t begin, int64_t count) {
      FloatBlock block;
      ForEachBlock(count, [&](int64_t from, int64_t n) {
        const int64_t column = begin + from, at = row * columns + column;
        alignas(64) float values[kRowBlock], factors[kRowBlock];
        const float* loaded = block.Load(product, at, n);
        std::copy(loaded, loaded + n, values);
        activation_.apply(values, n);
        step(values, n);
        if (scales == 1) {
          std::fill_n(factors, n, *scale);
        } else {
          std::copy(scale + column, scale + column + n, factors);
        }
        step(factors, n);
        for (int64_t i = 0; i < n; ++i) values[i] *= factors[i];
        step(values, n);
        if (offset) {
          std::fill_n(factors, n, *offset);
          step(factors, n);
          for (int64_t i = 0; i < n; ++i) values[i] += factors[i];
          step(values, n);
        }
        QuantizeBlock(QuantizeBy::kMultiplicationRoundedAtEnd, QuantizedType::kInt8, values, {&kOne, false},
                      {&kZero, false}, hidden + at, n);
      });
    });
  }

  Activation activation_;
  Experts experts_;
  DType result_;                       // kUndefined: that of x, or float16
  DType x_dtype_ = DType::kUndefined;  // when the model tells
  Packed packed_[2];
};

NPU_KERNEL(NPUFFN, FfnKernel);

}  // namespace
}  // namespace npu
