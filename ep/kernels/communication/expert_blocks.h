// What npu_alltoallv_gmm and npu_gmm_alltoallv share: blocks of rows, one for each rank and expert, and the experts'
// matrices. Entry r * e + j of a list of counts is about expert j of the e that rank r has.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ep/kernels/communication/overlap.h"
#include "ep/kernels/communication/rank_group.h"
#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/op_check.h"

namespace npu {

// Matrices [e, H, N], or [e, N, H]; of one expert also without the first axis.
class ExpertWeights {
 public:
  explicit ExpertWeights(bool transposed = false) : transposed_(transposed) {}

  bool Pack(const char* op, size_t axes, const TensorView& constant, Stream& stream) {
    if (static_cast<size_t>(constant.shape.rank()) != axes || !gemm::Supports(constant.dtype)) return false;
    for (int64_t j = 0; j < (axes == 3 ? constant.shape[0] : 1); ++j)
      packed_.emplace_back().Pack(op, constant.dtype, MatrixOf(constant, j), stream);
    view_ = constant;
    view_.data = nullptr;
    return true;
  }

  TensorView Of(OpContext& ctx, size_t input) const { return packed_.empty() ? ctx.Input(input) : view_; }
  bool transposed() const { return transposed_; }
  // The axis of H counts from the end.
  int64_t Depth(const TensorView& weight) const { return weight.shape[weight.shape.rank() - (transposed_ ? 1 : 2)]; }
  int64_t Columns(const TensorView& weight) const { return weight.shape[weight.shape.rank() - (transposed_ ? 2 : 1)]; }

  // to = `rows` rows of x times matrix j.
  void Multiply(const TensorView& weight, int64_t j, const void* x, int64_t rows, void* to) const {
    const int64_t n = Columns(weight);
    if (rows == 0 || n == 0) return;
    const gemm::Matrix a = gemm::Matrix::RowMajor(x, rows, Depth(weight)), b = MatrixOf(weight, j);
    const gemm::Result c{to, weight.dtype, n};
    if (packed_.empty()) return gemm::Multiply(weight.dtype, a, b, c);
    gemm::Multiply(a, packed_[static_cast<size_t>(j)].matrix(b), c);
  }

 private:
  gemm::Matrix MatrixOf(const TensorView& weight, int64_t j) const {
    const int axes = weight.shape.rank();
    const int64_t rows = weight.shape[axes - 2], columns = weight.shape[axes - 1];
    const char* data = weight.as<const char>();
    const gemm::Matrix stored =
        gemm::Matrix::RowMajor(data ? data + BytesFor(weight.dtype, j * rows * columns) : nullptr, rows, columns);
    return transposed_ ? stored.Transposed() : stored;
  }

  bool transposed_;
  std::deque<gemm::PackedWeight> packed_;  // none, or one for each expert
  TensorView view_;                        // type and shape
};

// The counts of a call, which are attributes.
class BlockCounts {
 public:
  BlockCounts() = default;
  explicit BlockCounts(const Attributes& attributes)
      : sent(attributes.Ints("send_counts")), received(attributes.Ints("recv_counts")) {}

  std::vector<int64_t> sent, received;

  void Check(const char* op, int64_t experts, int64_t ranks, int64_t rows) const {
    CheckList(op, "send_counts", sent, experts, ranks);
    CheckList(op, "recv_counts", received, experts, ranks);
    int64_t sum = 0;
    for (const int64_t count : sent) sum += count;
    NPU_OP_CHECK(op, rows == sum, "expected ", sum, " rows of gmm_x, the sum of send_counts, got ", rows);
    if (ranks == 1) CheckPairs(op, experts, 1, sent, received);
  }

  // Throws on every rank unless the ranks make the same call, in words, and send what the others receive: every rank
  // sees the counts of all. Returns the number of rows that all ranks send together.
  int64_t Agree(const char* op, const std::string& call, int64_t experts, Communicator& group) const {
    std::vector<int32_t> mine(sent.begin(), sent.end());
    mine.insert(mine.end(), received.begin(), received.end());
    const std::vector<int32_t> all = group.AgreeOn(op, call, mine);
    std::vector<int64_t> all_sent, all_received;
    for (auto rank = all.begin(); rank != all.end(); rank += static_cast<std::ptrdiff_t>(mine.size())) {
      const auto middle = rank + static_cast<std::ptrdiff_t>(sent.size());
      all_sent.insert(all_sent.end(), rank, middle);
      all_received.insert(all_received.end(), middle, middle + static_cast<std::ptrdiff_t>(received.size()));
    }
    CheckPairs(op, experts, group.size(), all_sent, all_received);
    return std::accumulate(all_sent.begin(), all_sent.end(), int64_t{0});
  }

 private:
  static void CheckList(const char* op, const char* name, const std::vector<int64_t>& counts, int64_t experts,
                        int64_t ranks) {
    NPU_OP_CHECK(op, static_cast<int64_t>(counts.size()) == experts * ranks, "expected ", name, " of ", experts, " * ",
                 ranks, " numbers, got ", counts.size());
    for (const int64_t count : counts)
      NPU_OP_CHECK(op, count >= 0 && count <= INT32_MAX, "expected ", name, " from 0 to 2147483647, got ", count);
  }

  // Of both operators the sender's entry (to, j) is the receiver's (from, j).
  static void CheckPairs(const char* op, int64_t experts, int64_t ranks, const std::vector<int64_t>& all_sent,
                         const std::vector<int64_t>& all_received) {
    const int64_t each = ranks * experts;
    for (int64_t from = 0; from < ranks; ++from)
      for (int64_t to = 0; to < ranks; ++to)
        for (int64_t j = 0; j < experts; ++j) {
          const int64_t out = all_sent[static_cast<size_t>(from * each + to * experts + j)];
          const int64_t in = all_received[static_cast<size_t>(to * each + from * experts + j)];
          NPU_OP_CHECK(op, out == in, "expected rank ", to, " to receive from rank ", from, ", of expert ", j, ", the ",
                       out, " rows that it sends, got ", in);
        }
  }
};

// The tensors of a call.
struct ExpertCall {
  TensorView x, weight, shared_x, shared_weight;
  int64_t experts() const { return weight.shape[0]; }
  size_t row_bytes() const { return BytesFor(x.dtype, x.shape[1]); }

  void Check(const char* op, const ExpertWeights& weights, const ExpertWeights& shared) const {
    NPU_OP_CHECK(op,
                 x && weight && x.shape.rank() == 2 && weight.shape.rank() == 3 && weight.dtype == x.dtype &&
                     weight.shape[0] > 0 && weights.Depth(weight) == x.shape[1],
                 "expected gmm_x [A, H] and gmm_weight of its dtype for one expert or more, ",
                 weights.transposed() ? "[e, N, H]" : "[e, H, N]", ", got ", NameOf(x.dtype), " ", x.shape, " and ",
                 NameOf(weight.dtype), " ", weight.shape);
    NPU_OP_CHECK(op, shared_x.present == shared_weight.present,
                 "expected mm_x and mm_weight together, got one of them");
    if (!shared_x) return;
    NPU_OP_CHECK(op,
                 shared_x.shape.rank() == 2 && shared_weight.shape.rank() == 2 &&
                     shared_weight.dtype == shared_x.dtype && shared.Depth(shared_weight) == shared_x.shape[1],
                 "expected mm_x [B, H] and mm_weight of its dtype, ", shared.transposed() ? "[N, H]" : "[H, N]",
                 ", got ", NameOf(shared_x.dtype), " ", shared_x.shape, " and ", NameOf(shared_weight.dtype), " ",
                 shared_weight.shape);
  }

  // mm_y, which needs no other rank; empty without mm_x.
  TensorView SharedOutput(OpContext& ctx, size_t output, const ExpertWeights& shared) const {
    if (!shared_x) return ctx.Output(output, x.dtype, Shape{0});
    return ctx.Output(output, shared_x.dtype, Shape{shared_x.shape[0], shared.Columns(shared_weight)});
  }
  void MultiplyShared(const ExpertWeights& shared, const TensorView& y) const {
    if (shared_x && y && y.elements() > 0) shared.Multiply(shared_weight, 0, shared_x.data, shared_x.shape[0], y.data);
  }
};

// Bytes of the experts [first, last) that go to, or come from, each rank.
inline std::vector<size_t> BytesOfExperts(const std::vector<int64_t>& counts, int64_t experts, int64_t first,
                                          int64_t last, size_t row_bytes) {
  std::vector<size_t> bytes(counts.size() / static_cast<size_t>(experts));
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    for (int64_t j = first; j < last; ++j)
      bytes[rank] +=
          static_cast<size_t>(counts[rank * static_cast<size_t>(experts) + static_cast<size_t>(j)]) * row_bytes;
  return bytes;
}

inline int64_t RowsOfExpert(const std::vector<int64_t>& counts, int64_t experts, int64_t j) {
  int64_t rows = 0;
  for (size_t at = static_cast<size_t>(j); at < counts.size(); at += static_cast<size_t>(experts)) rows += counts[at];
  return rows;
}

// Where the rows of a rank and an expert of a piece begin, in bytes.
struct BlockPlace {
  size_t all;        // among the rows of all experts, ordered by rank and expert
  size_t by_rank;    // among those of the piece, ordered by rank and expert
  size_t by_expert;  // among those of the piece, ordered by expert and rank
  size_t bytes;
};

// Calls f(place) for the rows of the experts [first, last) of every rank.
template <class F>
void ForEachBlock(const std::vector<int64_t>& counts, int64_t experts, int64_t first, int64_t last, size_t row_bytes,
                  const F& f) {
  std::vector<size_t> sorted;  // of each expert of the piece, where its next rows begin
  size_t begin = 0, all = 0, by_rank = 0;
  for (int64_t j = first; j < last; ++j) {
    sorted.push_back(begin);
    begin += static_cast<size_t>(RowsOfExpert(counts, experts, j)) * row_bytes;
  }
  for (size_t at = 0; at < counts.size(); ++at) {
    const size_t bytes = static_cast<size_t>(counts[at]) * row_bytes;
    const int64_t j = static_cast<int64_t>(at) % experts;
    if (j >= first && j < last && bytes > 0) {
      size_t& by_expert = sorted[static_cast<size_t>(j - first)];
      f(BlockPlace{all, by_rank, by_expert, bytes});
      by_rank += bytes;
      by_expert += bytes;
    }
    all += bytes;
  }
}

// The experts of a layer in pieces that are each worth a message; the same on all ranks, of which `rows` are all.
class ExpertPieces {
 public:
  ExpertPieces() = default;
  ExpertPieces(int64_t experts, int64_t rows, int64_t ranks, size_t row_bytes)
      : experts_(experts),
        count_(std::clamp<int64_t>(rows / ranks * static_cast<int64_t>(row_bytes) / kPieceBytes, 1, experts)) {}

  int64_t count() const { return count_; }
  // The first expert of a piece, or behind the last one the number of experts.
  int64_t First(int64_t piece) const { return piece * experts_ / count_; }

 private:
  int64_t experts_ = 1, count_ = 1;
};

// The attributes and constants of both operators, whose inputs are named alike.
template <class In>
class ExpertKernel : public Kernel {
 public:
  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override {
    if (input == In::gmm_weight) return weights_.Pack(op_, 3, constant, stream);
    return input == In::mm_weight && shared_.Pack(op_, 2, constant, stream);
  }

 protected:
  ExpertKernel(const char* op, const KernelInfo& info)
      : weights_(info.attributes.Bool("trans_gmm_weight")),
        shared_(info.attributes.Bool("trans_mm_weight")),
        counts_(info.attributes),
        op_(op) {
    CheckCommMode(op, info.attributes);
    ranks_ = RankGroup(op, info, "hcom", "ep_world_size");
  }

  // Throws for what does not fit together, on every rank.
  ExpertCall Read(OpContext& ctx, const std::shared_ptr<Communicator>& group) const {
    ExpertCall given;
    CheckForAll(ctx, op_, group, [&] {
      CheckNoTensor(op_, ctx, In::send_counts_tensor, "send_counts_tensor");
      CheckNoTensor(op_, ctx, In::recv_counts_tensor, "recv_counts_tensor");
      given = {ctx.Input(In::gmm_x), weights_.Of(ctx, In::gmm_weight), ctx.Input(In::mm_x),
               shared_.Of(ctx, In::mm_weight)};
      given.Check(op_, weights_, shared_);
      counts_.Check(op_, given.experts(), RanksOf(group), given.x.shape[0]);
    });
    return given;
  }

  // Throws on every rank unless the ranks make the same call, in words, with counts that fit together. Returns the
  // pieces of their exchange, of rows of so many bytes.
  ExpertPieces Agree(Communicator& group, size_t row_bytes, const std::string& call) const {
    const int64_t experts = static_cast<int64_t>(counts_.sent.size()) / group.size();
    return {experts, counts_.Agree(op_, call, experts, group), group.size(), row_bytes};
  }

  ExpertWeights weights_, shared_;
  BlockCounts counts_;
  RankGroup ranks_;

 private:
  const char* const op_;
};

}  // namespace npu
