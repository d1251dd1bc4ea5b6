// npu_all_gather_base_mm(x1, x2, bias?, x1_scale?, x2_scale?; hcom, world_size, gather_output, …) -> output,
// gather_out. The semantics are in npu_all_gather_base_mm.py.
#include "contrib_ops/communication/npu_all_gather_base_mm.h"

#include <cstring>
#include <memory>
#include <vector>

#include "ep/kernels/communication/overlap.h"
#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/scaled_product.h"

namespace npu {
namespace {

using Node = nodes::NPUAllGatherBaseMm;
using Out = Node::Out;

constexpr const char* kOp = "npu_all_gather_base_mm";

class AllGatherKernel final : public Kernel {
 public:
  explicit AllGatherKernel(const KernelInfo& info) : node_(kOp, info), gathers_(info.attributes.Bool("gather_output")) {
    CheckUnused(kOp, info.attributes, "gather_index", 0);
  }

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    return node_.PrePack(input, constant, stream);
  }

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = node_.FindGroup(ctx);
    const int64_t ranks = RanksOf(group);
    const ScaledOperands given = node_.Operands(ctx, group, [](const ScaledOperands&) {});
    const TensorView y = ctx.Output(Out::output, given.result, Shape{given.m() * ranks, given.n()});
    const TensorView gathered =
        ctx.Output(Out::gather_out, given.x1.dtype, gathers_ ? Shape{given.m() * ranks, given.k()} : Shape{0});
    const ScaledProduct scaled(ctx, given);
    std::string call;
    char* rows = nullptr;
    if (ranks > 1) {
      call = Concat("x1 ", NameOf(given.x1.dtype), " ", given.x1.shape, given.x1_scale ? " with x1_scale" : "");
      // One piece has the order of the result.
      rows = gathers_ && gathered && given.m() <= StepOf(given, ranks)
                 ? gathered.as<char>()
                 : static_cast<char*>(ctx.Workspace(given.x1.bytes() * static_cast<size_t>(ranks)));
    }
    ctx.Launch(kOp, [this, scaled, given, y, gathered, group, call, rows] {
      scaled.Load();
      if (RanksOf(group) > 1) return Exchange(scaled.product, given, y, gathered, *group, call, rows);
      if (gathered && gathered.elements() > 0) std::memcpy(gathered.data, given.x1.data, gathered.bytes());
      if (y && y.elements() > 0) scaled.product.MultiplyOwn(node_.weight(), 0, given.m(), {y.data, y.dtype, given.n()});
    });
  }

 private:
  static int64_t StepOf(const ScaledOperands& given, int64_t ranks) {
    return RowsOfPiece(given.m(), BytesFor(given.x1.dtype, given.k()) * static_cast<size_t>(ranks));
  }

  // A piece has some rows of every rank: while it is multiplied, the next is gathered to `rows`, in the order of
  // pieces.
  void Exchange(RankProduct product, const ScaledOperands& given, const TensorView& y, const TensorView& gathered,
                Communicator& group, const std::string& call, char* rows) const {
    const auto turn = group.Turn();
    const int64_t m = given.m(), n = given.n(), k = given.k(), ranks = group.size();
    const DType dtype = given.x1.dtype;
    const int64_t step = StepOf(given, ranks), pieces = (m + step - 1) / step;
    std::vector<float> scales(given.x1_scale ? static_cast<size_t>(ranks * m) : 0);
    Overlap overlap(pieces > 1);
    overlap.Add([&] {
      group.Agree(kOp, call);
      if (!scales.empty())
        group.AllGather(kOp, given.x1_scale.data, scales.data(), static_cast<size_t>(m) * sizeof(float));
    });
    for (int64_t begin = 0; begin < m; begin += step) {
      const int64_t count = std::min(step, m - begin);
      overlap.Add([&group, &given, rows, dtype, begin, count, k, ranks] {
        group.AllGather(kOp, given.x1.as<char>() + BytesFor(dtype, begin * k),
                        rows + BytesFor(dtype, ranks * begin * k), BytesFor(dtype, count * k));
      });
    }
    if (y && y.elements() > 0) product.PackFor(pieces * ranks, node_.weight());  // beside the first exchange
    if (!scales.empty()) product.epilogue.total_scale = {scales.data(), 1};
    for (int64_t begin = 0, piece = 0; begin < m; begin += step, ++piece) {
      const int64_t count = std::min(step, m - begin);
      overlap.Wait(piece + 2);
      overlap.Compute([&] {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const char* from = rows + BytesFor(dtype, (ranks * begin + rank * count) * k);
          const int64_t first = rank * m + begin;
          if (gathered && gathered.elements() > 0 && gathered.data != rows)
            std::memcpy(gathered.as<char>() + BytesFor(dtype, first * k), from, BytesFor(dtype, count * k));
          if (y && y.elements() > 0)
            product.Multiply(node_.weight(), from, first, count,
                             {y.as<char>() + BytesFor(y.dtype, first * n), y.dtype, n});
        }
      });
    }
    overlap.Wait();
  }

  ScaledNode<Node> node_;
  bool gathers_;
};

NPU_RANK_KERNEL(NPUAllGatherBaseMm, AllGatherKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
