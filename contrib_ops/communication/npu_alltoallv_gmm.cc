// npu_alltoallv_gmm(gmm_x, gmm_weight, …, mm_x?, mm_weight?; hcom, ep_world_size, send_counts, recv_counts, …) ->
// gmm_y, mm_y, permute_out. The semantics are in npu_alltoallv_gmm.py.
#include "contrib_ops/communication/npu_alltoallv_gmm.h"

#include <numeric>

#include "ep/kernels/communication/expert_blocks.h"
#include "ep/kernels/communication/overlap.h"

namespace npu {
namespace {

using In = nodes::NPUAlltoAllvGmm::In;
using Out = nodes::NPUAlltoAllvGmm::Out;

constexpr const char* kOp = "npu_alltoallv_gmm";

class AllToAllProductKernel final : public ExpertKernel<In> {
 public:
  explicit AllToAllProductKernel(const KernelInfo& info)
      : ExpertKernel(kOp, info), permutes_(info.attributes.Bool("permute_out_flag")) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = ranks_.Find(ctx);
    const ExpertCall given = Read(ctx, group);
    const int64_t rows = std::accumulate(counts_.received.begin(), counts_.received.end(), int64_t{0});
    const DType dtype = given.x.dtype;
    const TensorView y = ctx.Output(Out::gmm_y, dtype, Shape{rows, weights_.Columns(given.weight)});
    const TensorView shared_y = given.SharedOutput(ctx, Out::mm_y, shared_);
    const TensorView permuted =
        ctx.Output(Out::permute_out, dtype, permutes_ ? Shape{rows, given.x.shape[1]} : Shape{0});
    Rooms rooms;
    if (RanksOf(group) > 1) {
      const size_t bytes = static_cast<size_t>(rows) * given.row_bytes();
      const bool kept = permuted && permuted.elements() > 0;
      rooms.arrived = kept ? permuted.as<char>() : static_cast<char*>(ctx.Workspace(bytes));
      rooms.by_rank = static_cast<char*>(ctx.Workspace(bytes));
      rooms.leaving = static_cast<char*>(ctx.Workspace(given.x.bytes()));
    }
    ctx.Launch(kOp, [this, given, y, shared_y, permuted, rooms, group] {
      if (RanksOf(group) > 1) return Exchange(given, y, shared_y, rooms, *group);
      given.MultiplyShared(shared_, shared_y);
      Multiply(given, given.x.as<char>(), y, 0, given.experts());
      if (permuted && permuted.elements() > 0) std::memcpy(permuted.data, given.x.data, permuted.bytes());
    });
  }

 private:
  // Where rows are: those that have arrived in the order of the result; of one piece, by rank, and on their way.
  struct Rooms {
    char *arrived = nullptr, *by_rank = nullptr, *leaving = nullptr;
  };

  // y of the experts [first, last), whose rows are ordered by expert.
  void Multiply(const ExpertCall& given, const char* rows, const TensorView& y, int64_t first, int64_t last) const {
    if (!y || y.elements() == 0) return;
    int64_t at = 0;
    for (int64_t j = 0; j < last; ++j) {
      const int64_t count = RowsOfExpert(counts_.received, given.experts(), j);
      if (j >= first)
        weights_.Multiply(given.weight, j, rows + static_cast<size_t>(at) * given.row_bytes(), count,
                          y.as<char>() + BytesFor(y.dtype, at * y.shape[1]));
      at += count;
    }
  }

  // The rows of some experts are exchanged while those of the ones before are multiplied. They end in their order.
  void Exchange(const ExpertCall& given, const TensorView& y, const TensorView& shared_y, const Rooms& rooms,
                Communicator& group) const {
    const auto turn = group.Turn();
    const int64_t experts = given.experts();
    const size_t row = given.row_bytes();
    const std::string call = Concat(NameOf(given.x.dtype), " rows of ", given.x.shape[1], " elements for ", experts,
                                    " experts on each rank");
    ExpertPieces pieces;
    Overlap(false).Add([&] { pieces = Agree(group, row, call); });
    Overlap overlap(pieces.count() > 1);
    size_t place = 0;
    for (int64_t piece = 0; piece < pieces.count(); ++piece) {
      const int64_t first = pieces.First(piece), last = pieces.First(piece + 1);
      overlap.Add([&, first, last, to = rooms.arrived + place] {
        const std::vector<size_t> sent = BytesOfExperts(counts_.sent, experts, first, last, row);
        const std::vector<size_t> received = BytesOfExperts(counts_.received, experts, first, last, row);
        ForEachBlock(counts_.sent, experts, first, last, row, [&](const BlockPlace& block) {
          std::memcpy(rooms.leaving + block.by_rank, given.x.as<char>() + block.all, block.bytes);
        });
        if (last - first == 1) return group.AllToAll(kOp, rooms.leaving, sent, to, received);
        group.AllToAll(kOp, rooms.leaving, sent, rooms.by_rank, received);
        ForEachBlock(counts_.received, experts, first, last, row, [&](const BlockPlace& block) {
          std::memcpy(to + block.by_expert, rooms.by_rank + block.by_rank, block.bytes);
        });
      });
      for (int64_t j = first; j < last; ++j)
        place += static_cast<size_t>(RowsOfExpert(counts_.received, experts, j)) * row;
    }
    overlap.Compute([&] { given.MultiplyShared(shared_, shared_y); });
    for (int64_t piece = 0; piece < pieces.count(); ++piece) {
      overlap.Wait(piece + 1);
      overlap.Compute([&] { Multiply(given, rooms.arrived, y, pieces.First(piece), pieces.First(piece + 1)); });
    }
  }

  bool permutes_;
};

NPU_RANK_KERNEL(NPUAlltoAllvGmm, AllToAllProductKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
