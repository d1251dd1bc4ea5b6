// Einsum (ai.onnx 12). The operands are contracted from left to right, each time two of them as a batch of matrix
// products: the subscripts of both that are needed later are the batch, the others that both have are summed.
#include <algorithm>
#include <cstring>
#include <utility>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/matmul/batches.h"
#include "ep/kernels/matmul/einsum_equation.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/movement/strided_copy.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr const char* kOp = "Einsum";
using Subscripts = EinsumEquation::Subscripts;
using Strides = std::array<int64_t, Shape::kMaxRank>;
using AllTypes = Types<float, Float16, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

bool Has(const Subscripts& list, int subscript) { return std::find(list.begin(), list.end(), subscript) != list.end(); }

// A tensor whose axes have subscripts, each once; a stride of 0 repeats.
struct Operand {
  const void* data = nullptr;
  Subscripts subscripts;
  std::vector<int64_t> strides;

  int64_t StrideOf(int subscript) const {
    const auto at = std::find(subscripts.begin(), subscripts.end(), subscript);
    return at == subscripts.end() ? 0 : strides[static_cast<size_t>(at - subscripts.begin())];
  }
};

// A walk over some subscripts.
struct Walk {
  std::vector<int64_t> dims, strides;
  int64_t total = 1;

  int64_t Offset(int64_t i) const {
    int64_t offset = 0;
    for (size_t d = dims.size(); d-- > 0; i /= dims[d]) offset += i % dims[d] * strides[d];
    return offset;
  }
};

class Contraction {
 public:
  Contraction(OpContext& ctx, DType dtype, const EinsumEquation& equation)
      : ctx_(ctx), dtype_(dtype), equation_(equation) {}

  void Run(std::vector<Operand> operands, const TensorView& y) {
    while (operands.size() > 1) {
      Subscripts needed = equation_.output;
      for (size_t i = 2; i < operands.size(); ++i)
        needed.insert(needed.end(), operands[i].subscripts.begin(), operands[i].subscripts.end());
      operands[1] = Product(operands[0], operands[1], needed);
      operands.erase(operands.begin());
    }
    const Operand last = Sum(operands[0], equation_.output, {});
    Copy(last, equation_.output, y.data);
  }

 private:
  int64_t SizeOf(int subscript) const { return equation_.sizes.at(subscript); }
  int64_t SizeOf(const Subscripts& list) const {
    Shape shape;
    for (const int s : list) shape.push_back(SizeOf(s));
    return shape.Elements();
  }
  Walk WalkOf(const Operand& operand, const Subscripts& list) const {
    Walk walk;
    for (const int s : list) {
      walk.dims.push_back(SizeOf(s));
      walk.strides.push_back(operand.StrideOf(s));
      walk.total *= SizeOf(s);
    }
    return walk;
  }
  Operand Dense(const void* data, const Subscripts& list) const {
    Operand operand{data, list, std::vector<int64_t>(list.size())};
    int64_t stride = 1;
    for (size_t d = list.size(); d-- > 0; stride *= SizeOf(list[d])) operand.strides[d] = stride;
    return operand;
  }
  void* Scratch(int64_t elements) { return ctx_.Workspace(BytesFor(dtype_, elements)); }

  // A dense copy with the axes of `list`.
  void Copy(const Operand& operand, const Subscripts& list, void* to) {
    Shape shape;
    Strides strides{};
    for (size_t d = 0; d < list.size(); ++d) {
      shape.push_back(SizeOf(list[d]));
      strides[d] = operand.StrideOf(list[d]);
    }
    if (shape.Elements() > 0) LaunchStridedCopy(ctx_, kOp, shape, strides, BytesFor(dtype_, 1), to, operand.data);
  }
  // The operand's elements as a dense tensor of `list`: itself if it is one.
  const void* Arranged(const Operand& operand, const Subscripts& list) {
    bool dense = true;
    const Operand wanted = Dense(nullptr, list);
    for (size_t d = 0; d < list.size(); ++d)
      dense = dense && (SizeOf(list[d]) == 1 || operand.StrideOf(list[d]) == wanted.strides[d]);
    if (dense) return operand.data;
    void* to = Scratch(SizeOf(list));
    Copy(operand, list, to);
    return to;
  }

  // Sums over the subscripts that are neither in `needed` nor in `others`.
  Operand Sum(const Operand& operand, const Subscripts& needed, const Subscripts& others) {
    Subscripts kept, summed;
    for (const int s : operand.subscripts) (Has(needed, s) || Has(others, s) ? kept : summed).push_back(s);
    if (summed.empty()) return operand;
    const Walk outer = WalkOf(operand, kept), inner = WalkOf(operand, summed);
    void* to = Scratch(outer.total);
    DispatchTypes(kOp, dtype_, AllTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx_.Launch(kOp, [outer, inner, from = static_cast<const T*>(operand.data), sums = static_cast<T*>(to)] {
        ParallelFor(outer.total, RowGrain(inner.total), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const T* first = from + outer.Offset(i);
            Wrapping<ComputeType<T>> sum{};
            for (int64_t k = 0; k < inner.total; ++k)
              sum += static_cast<Wrapping<ComputeType<T>>>(Upcast(first[inner.Offset(k)]));
            sums[i] = Rounded<T>(static_cast<ComputeType<T>>(sum));
          }
        });
      });
    });
    return Dense(to, kept);
  }

  Operand Product(const Operand& left, const Operand& right, const Subscripts& needed) {
    const Operand a = Sum(left, needed, right.subscripts), b = Sum(right, needed, left.subscripts);
    Subscripts batch, rows, columns, summed;
    for (const int s : a.subscripts) {
      if (!Has(b.subscripts, s)) {
        rows.push_back(s);
      } else {
        (Has(needed, s) ? batch : summed).push_back(s);
      }
    }
    for (const int s : b.subscripts)
      if (!Has(a.subscripts, s)) columns.push_back(s);
    const auto joined = [](Subscripts list, const Subscripts& second, const Subscripts& third) {
      list.insert(list.end(), second.begin(), second.end());
      list.insert(list.end(), third.begin(), third.end());
      return list;
    };
    const Subscripts result = joined(batch, rows, columns);
    MatMulShape s;
    s.m = SizeOf(rows);
    s.k = SizeOf(summed);
    s.n = SizeOf(columns);
    s.batches = SizeOf(batch);
    void* to = Scratch(SizeOf(result));
    if (SizeOf(result) == 0) return Dense(to, result);
    if (s.k == 0) {
      ctx_.Launch(kOp, [to, bytes = BytesFor(dtype_, SizeOf(result))] { std::memset(to, 0, bytes); });
      return Dense(to, result);
    }
    LaunchProducts(s, Arranged(a, joined(batch, rows, summed)), Arranged(b, joined(batch, summed, columns)), to);
    return Dense(to, result);
  }

  void LaunchProducts(const MatMulShape& s, const void* a, const void* b, void* c) {
    DispatchTypes(kOp, dtype_, AllTypes{}, [&](auto type) {
      using T = decltype(type);
      ctx_.Launch(kOp, [s, dtype = dtype_, left = static_cast<const T*>(a), right = static_cast<const T*>(b),
                        to = static_cast<T*>(c)] {
        ForEachEntry(s, [&](int64_t i) {
          const gemm::Matrix rows = gemm::Matrix::RowMajor(left + i * s.m * s.k, s.m, s.k);
          const gemm::Matrix columns = gemm::Matrix::RowMajor(right + i * s.k * s.n, s.k, s.n);
          if constexpr (std::is_same_v<ComputeType<T>, float>) {
            gemm::Multiply(dtype, rows, columns, {to + i * s.m * s.n, dtype, s.n});
          } else {
            PlainProduct<T>(rows, columns, to + i * s.m * s.n);
          }
        });
      });
    });
  }

  OpContext& ctx_;
  DType dtype_;
  const EinsumEquation& equation_;
};

// The operand with each subscript once: a repeated one walks the diagonal; axes of size 1 repeat.
Operand OperandOf(const TensorView& x, const Subscripts& subscripts) {
  Operand operand{x.data, {}, {}};
  const Strides strides = DenseStrides(x.shape);
  for (size_t d = 0; d < subscripts.size(); ++d) {
    const int64_t stride = x.shape[static_cast<int>(d)] == 1 ? 0 : strides[d];
    const auto at = std::find(operand.subscripts.begin(), operand.subscripts.end(), subscripts[d]);
    if (at != operand.subscripts.end()) {
      operand.strides[static_cast<size_t>(at - operand.subscripts.begin())] += stride;
    } else {
      operand.subscripts.push_back(subscripts[d]);
      operand.strides.push_back(stride);
    }
  }
  return operand;
}

class EinsumKernel final : public Kernel {
 public:
  explicit EinsumKernel(const KernelInfo& info) : equation_(info.attributes.String("equation")) {}

  void Compute(OpContext& ctx) const override {
    std::vector<Shape> shapes;
    const DType dtype = ctx.Input(0).dtype;
    for (size_t i = 0; i < ctx.input_count(); ++i) {
      NPU_OP_CHECK(kOp, ctx.Input(i).dtype == dtype, "expected operands of one type, got ", NameOf(dtype), " and ",
                   NameOf(ctx.Input(i).dtype));
      shapes.push_back(ctx.Input(i).shape);
    }
    const EinsumEquation equation(equation_, shapes);
    Shape shape;
    for (const int s : equation.output) shape.push_back(equation.sizes.at(s));
    const TensorView y = ctx.Output(0, dtype, shape);
    if (y.elements() == 0) return;
    std::vector<Operand> operands;
    for (size_t i = 0; i < shapes.size(); ++i) operands.push_back(OperandOf(ctx.Input(i), equation.operands[i]));
    Contraction(ctx, dtype, equation).Run(std::move(operands), y);
  }

 private:
  std::string equation_;
};

constexpr DTypeSet kEinsumTypes =
    kIndices | DTypeSet{DType::kFloat32, DType::kFloat16, DType::kFloat64, DType::kUInt32, DType::kUInt64};

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 12,
    .until = 12,
    .inputs = {VariadicInput("Inputs", kEinsumTypes)},
    .outputs = {Output("Output", kEinsumTypes)},
    .attributes = {{.name = "equation", .kind = AttrDef::Kind::kString, .required = true}},
    .make = MakeKernel<EinsumKernel>,
});

}  // namespace
}  // namespace npu
