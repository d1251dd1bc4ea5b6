// npu_mm_reduce_scatter_base(x1, x2, bias?, x1_scale?, x2_scale?; hcom, world_size, …) -> y. The semantics are in
// npu_mm_reduce_scatter_base.py.
#include "contrib_ops/communication/npu_mm_reduce_scatter_base.h"

#include <algorithm>
#include <memory>

#include "ep/kernels/communication/overlap.h"
#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/scaled_product.h"
#include "ep/kernels/communication/sums.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

using Node = nodes::NPUMmReduceScatterBase;
using Out = Node::Out;

constexpr const char* kOp = "npu_mm_reduce_scatter_base";

class ReduceScatterKernel final : public Kernel {
 public:
  explicit ReduceScatterKernel(const KernelInfo& info) : node_(kOp, info) {
    const std::string reduction = info.attributes.String("reduce_op");
    NPU_OP_CHECK(kOp, reduction == "sum", "expected reduce_op 'sum', got '", Printable(reduction), "'");
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return node_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = node_.FindGroup(ctx);
    const int64_t ranks = RanksOf(group);
    const ScaledOperands given = node_.Operands(ctx, group, [&](const ScaledOperands& operands) {
      NPU_OP_CHECK(kOp, operands.m() % ranks == 0, "expected a number of rows that ", ranks, " ranks divide, got ",
                   operands.m());
    });
    const TensorView y = ctx.Output(Out::y, given.result, Shape{given.m() / ranks, given.n()});
    if (!y || (y.elements() == 0 && ranks == 1)) return;
    const ScaledProduct scaled(ctx, given);
    std::string call;
    char *parts = nullptr, *received = nullptr;
    if (ranks > 1) {
      call = Concat("y ", NameOf(y.dtype), " ", y.shape);
      parts = static_cast<char*>(ctx.Workspace(y.bytes() * static_cast<size_t>(ranks)));
      const int64_t most = std::min(y.shape[0], StepOf(y, ranks));
      received = static_cast<char*>(ctx.Workspace(ReduceScatterScratch(y.dtype, most * y.shape[1], ranks)));
    }
    ctx.Launch(kOp, [this, scaled, y, group, call, parts, received] {
      scaled.Load();
      if (RanksOf(group) == 1)
        return scaled.product.MultiplyOwn(node_.weight(), 0, y.shape[0], {y.data, y.dtype, y.shape[1]});
      Exchange(scaled.product, y, *group, call, parts, received);
    });
  }

 private:
  static int64_t StepOf(const TensorView& y, int64_t ranks) {
    return RowsOfPiece(y.shape[0], BytesFor(y.dtype, y.shape[1]) * static_cast<size_t>(ranks));
  }

  // A piece has some rows of the block of every rank: while it is exchanged, the next is multiplied. `parts` has room
  // for all pieces, `received` for one.
  void Exchange(RankProduct product, const TensorView& y, Communicator& group, const std::string& call, char* parts,
                char* received) const {
    const auto turn = group.Turn();
    const int64_t rows = y.shape[0], n = y.shape[1], ranks = group.size();
    const int64_t step = StepOf(y, ranks), pieces = (rows + step - 1) / step;
    Overlap overlap(pieces > 1);
    overlap.Add([&] { group.Agree(kOp, call); });
    product.PackFor(pieces * ranks, node_.weight());
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      const size_t block = BytesFor(y.dtype, count * n);
      char* const piece = parts + BytesFor(y.dtype, begin * n) * static_cast<size_t>(ranks);
      overlap.Compute([&] {
        for (int64_t rank = 0; rank < ranks; ++rank)
          product.MultiplyOwn(node_.weight(), rank * rows + begin, count,
                              {piece + static_cast<size_t>(rank) * block, y.dtype, n});
      });
      overlap.Add([&group, &y, piece, begin, count, n, received] {
        ReduceScatter(group, kOp, y.dtype, piece, y.as<char>() + BytesFor(y.dtype, begin * n), count * n, received);
      });
    }
    overlap.Wait();
  }

  ScaledNode<Node> node_;
};

NPU_RANK_KERNEL(NPUMmReduceScatterBase, ReduceScatterKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
