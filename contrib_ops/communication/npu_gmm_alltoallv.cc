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
    const std::shared_ptr<Communicator> group = ranks_.Find();
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

  // The results of an expert are exchanged while those of the next are computed.
  void Exchange(const ExpertCall& given, const TensorView& y, const TensorView& shared_y, Communicator& group) const {
    const auto turn = group.Turn();
    const int64_t experts = given.experts(), n = weights_.Columns(given.weight);
    const size_t row = BytesFor(given.x.dtype, n);
    const auto results = Scratch(static_cast<size_t>(given.x.shape[0]) * row);
    Overlap overlap(ExpertPieces(experts + (given.shared_x ? 1 : 0), given.x.shape[0], row));
    overlap.Add([&] {
      group.Agree(kOp,
                  Concat(NameOf(given.x.dtype), " rows of ", n, " elements of ", experts, " experts on each rank"));
      counts_.CheckWithOthers(kOp, experts, group);
    });
    int64_t at = 0;
    for (int64_t j = 0; j < experts; ++j) {
      char* leaving = results.get() + static_cast<size_t>(at) * row;
      overlap.Compute([&] { at += Multiply(given, j, at, leaving); });
      overlap.Add([&, j, leaving] {
        const std::vector<size_t> received = BytesOfExpert(counts_.received, experts, j, row);
        const auto arrived = Scratch(std::accumulate(received.begin(), received.end(), size_t{0}));
        group.AllToAll(kOp, leaving, BytesOfExpert(counts_.sent, experts, j, row), arrived.get(), received);
        if (!y) return;
        ForEachBlock(counts_.received, experts, j, row, [&](size_t to, size_t packed, size_t bytes) {
          std::memcpy(y.as<char>() + to, arrived.get() + packed, bytes);
        });
      });
    }
    overlap.Compute([&] { given.MultiplyShared(shared_, shared_y); });
    overlap.Wait();
  }
};

NPU_KERNEL(NPUGmmAlltoAllv, ProductAllToAllKernel);

}  // namespace
}  // namespace npu
