// npu_gmm_alltoallv(gmm_x, gmm_weight, …, mm_x?, mm_weight?; hcom, ep_world_size, send_counts, recv_counts, …) -> y,
// mm_y. The semantics are in npu_gmm_alltoallv.py.
#include "contrib_ops/communication/npu_gmm_alltoallv.h"

#include <numeric>

#include "ep/kernels/communication/expert_blocks.h"
#include "ep/kernels/communication/overlap.h"

namespace npu {
namespace {

using In = nodes::NPUGmmAlltoAllv::In;
using Out = nodes::NPUGmmAlltoAllv::Out;

constexpr const char* kOp = "npu_gmm_alltoallv";

class ProductAllToAllKernel final : public ExpertKernel<In> {
 public:
  explicit ProductAllToAllKernel(const KernelInfo& info) : ExpertKernel(kOp, info) {}

  void Compute(OpContext& ctx) const override {
    const std::shared_ptr<Communicator> group = ranks_.Find(ctx);
    const ExpertCall given = Read(ctx, group);
    const int64_t rows = std::accumulate(counts_.received.begin(), counts_.received.end(), int64_t{0});
    const TensorView y = ctx.Output(Out::y, given.x.dtype, Shape{rows, weights_.Columns(given.weight)});
    const TensorView shared_y = given.SharedOutput(ctx, Out::mm_y, shared_);
    Rooms rooms;
    if (RanksOf(group) > 1) {
      const size_t row = BytesFor(given.x.dtype, weights_.Columns(given.weight));
      const size_t made = static_cast<size_t>(given.x.shape[0]) * row;
      rooms.results = static_cast<char*>(ctx.Workspace(made));
      rooms.by_rank = static_cast<char*>(ctx.Workspace(made));
      rooms.arrived = static_cast<char*>(ctx.Workspace(static_cast<size_t>(rows) * row));
    }
    ctx.Launch(kOp, [this, given, y, shared_y, rooms, group] {
      if (RanksOf(group) > 1) return Exchange(given, y, shared_y, rooms, *group);
      given.MultiplyShared(shared_, shared_y);
      int64_t at = 0;
      for (int64_t j = 0; y && j < given.experts(); ++j) at += Multiply(given, j, at, y.as<char>() + RowOf(y, at));
    });
  }

 private:
  // Where rows are: all results; of one piece, by rank, and those that have arrived.
  struct Rooms {
    char *results = nullptr, *by_rank = nullptr, *arrived = nullptr;
  };

  static size_t RowOf(const TensorView& y, int64_t row) { return BytesFor(y.dtype, row * y.shape[1]); }

  // The rows of expert j, which begin at row `at`; returns how many there are.
  int64_t Multiply(const ExpertCall& given, int64_t j, int64_t at, char* to) const {
    const int64_t count = RowsOfExpert(counts_.sent, given.experts(), j);
    weights_.Multiply(given.weight, j, given.x.as<char>() + static_cast<size_t>(at) * given.row_bytes(), count, to);
    return count;
  }

  // The results of some experts are exchanged while those of the next are computed.
  void Exchange(const ExpertCall& given, const TensorView& y, const TensorView& shared_y, const Rooms& rooms,
                Communicator& group) const {
    const auto turn = group.Turn();
    const int64_t experts = given.experts(), n = weights_.Columns(given.weight);
    const size_t row = BytesFor(given.x.dtype, n);
    const std::string call =
        Concat(NameOf(given.x.dtype), " rows of ", n, " elements of ", experts, " experts on each rank");
    ExpertPieces pieces;
    // The agreement tells the number of pieces; products begin beside it.
    Overlap overlap(given.x.shape[0] * static_cast<int64_t>(row) > kPieceBytes);
    overlap.Add([&] { pieces = Agree(group, row, call); });
    int64_t at = 0, next = 0;  // the first expert whose results are missing, and where they begin
    const auto multiply_next = [&] {
      overlap.Compute([&] { at += Multiply(given, next++, at, rooms.results + static_cast<size_t>(at) * row); });
    };
    while (next < experts && !overlap.Ended(1)) multiply_next();
    overlap.Wait(1);
    const char* made = rooms.results;
    for (int64_t piece = 0; piece < pieces.count(); ++piece) {
      const int64_t first = pieces.First(piece), last = pieces.First(piece + 1);
      while (next < last) multiply_next();
      overlap.Add([&, first, last, made] {
        const std::vector<size_t> sent = BytesOfExperts(counts_.sent, experts, first, last, row);
        const std::vector<size_t> received = BytesOfExperts(counts_.received, experts, first, last, row);
        const bool several = last - first > 1;  // whose results are by expert
        if (several) {
          ForEachBlock(counts_.sent, experts, first, last, row, [&](const BlockPlace& block) {
            std::memcpy(rooms.by_rank + block.by_rank, made + block.by_expert, block.bytes);
          });
        }
        group.AllToAll(kOp, several ? rooms.by_rank : made, sent, rooms.arrived, received);
        if (!y) return;
        ForEachBlock(counts_.received, experts, first, last, row, [&](const BlockPlace& block) {
          std::memcpy(y.as<char>() + block.all, rooms.arrived + block.by_rank, block.bytes);
        });
      });
      for (int64_t j = first; j < last; ++j) made += static_cast<size_t>(RowsOfExpert(counts_.sent, experts, j)) * row;
    }
    overlap.Compute([&] { given.MultiplyShared(shared_, shared_y); });
    overlap.Wait();
  }
};

NPU_RANK_KERNEL(NPUGmmAlltoAllv, ProductAllToAllKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
