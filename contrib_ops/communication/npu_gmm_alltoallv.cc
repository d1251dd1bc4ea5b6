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
    ctx.Launch(kOp, [this, given, y, shared_y, group] {
      if (RanksOf(group) > 1) return Exchange(given, y, shared_y, *group);
      given.MultiplyShared(shared_, shared_y);
      int64_t at = 0;
      for (int64_t j = 0; y && j < given.experts(); ++j) at += Multiply(given, j, at, y.as<char>() + RowOf(y, at));
    });
  }

 private:
  static size_t RowOf(const TensorView& y, int64_t row) { return BytesFor(y.dtype, row * y.shape[1]); }

  // The rows of expert j, which begin at row `at`; returns how many there are.
  int64_t Multiply(const ExpertCall& given, int64_t j, int64_t at, char* to) const {
    const int64_t count = RowsOfExpert(counts_.sent, given.experts(), j);
    weights_.Multiply(given.weight, j, given.x.as<char>() + static_cast<size_t>(at) * given.row_bytes(), count, to);
    return count;
  }

  // The results of some experts are exchanged while those of the next are computed.
  void Exchange(const ExpertCall& given, const TensorView& y, const TensorView& shared_y, Communicator& group) const {
    const auto turn = group.Turn();
    const int64_t experts = given.experts(), n = weights_.Columns(given.weight);
    const size_t row = BytesFor(given.x.dtype, n);
    const ExpertPieces pieces = Agree(
        group, row, Concat(NameOf(given.x.dtype), " rows of ", n, " elements of ", experts, " experts on each rank"));
    const auto results = Scratch(static_cast<size_t>(given.x.shape[0]) * row);
    Overlap overlap(pieces.count());
    int64_t at = 0;
    for (int64_t piece = 0; piece < pieces.count(); ++piece) {
      const int64_t first = pieces.First(piece), last = pieces.First(piece + 1);
      const char* made = results.get() + static_cast<size_t>(at) * row;
      overlap.Compute([&] {
        for (int64_t j = first; j < last; ++j)
          at += Multiply(given, j, at, results.get() + static_cast<size_t>(at) * row);
      });
      overlap.Add([&, first, last, made] {
        const std::vector<size_t> sent = BytesOfExperts(counts_.sent, experts, first, last, row);
        const std::vector<size_t> received = BytesOfExperts(counts_.received, experts, first, last, row);
        const auto arrived = Scratch(std::accumulate(received.begin(), received.end(), size_t{0}));
        std::unique_ptr<char[]> by_rank;
        if (last - first > 1) {
          by_rank = Scratch(std::accumulate(sent.begin(), sent.end(), size_t{0}));
          ForEachBlock(counts_.sent, experts, first, last, row, [&](const BlockPlace& block) {
            std::memcpy(by_rank.get() + block.by_rank, made + block.by_expert, block.bytes);
          });
        }
        group.AllToAll(kOp, by_rank ? by_rank.get() : made, sent, arrived.get(), received);
        if (!y) return;
        ForEachBlock(counts_.received, experts, first, last, row, [&](const BlockPlace& block) {
          std::memcpy(y.as<char>() + block.all, arrived.get() + block.by_rank, block.bytes);
        });
      });
    }
    overlap.Compute([&] { given.MultiplyShared(shared_, shared_y); });
    overlap.Wait();
  }
};

NPU_RANK_KERNEL(NPUGmmAlltoAllv, ProductAllToAllKernel, kOp, "hcom");

}  // namespace
}  // namespace npu
