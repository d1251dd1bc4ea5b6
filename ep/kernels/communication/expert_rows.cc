#include "ep/kernels/communication/expert_rows.h"

#include <numeric>

namespace npu {
namespace {

std::vector<size_t> BytesOfRanks(const std::vector<int64_t>& counts, size_t ranks, size_t record) {
  const size_t each = counts.size() / ranks;
  std::vector<size_t> bytes(ranks);
  for (size_t i = 0; i < counts.size(); ++i) bytes[i / each] += static_cast<size_t>(counts[i]) * record;
  return bytes;
}

}  // namespace

RowRecords ExchangeRows(const char* op, Communicator* group, RowRecords leaving, const std::vector<int64_t>& sent,
                        const std::vector<int64_t>& received, size_t row_bytes) {
  if (group == nullptr) return leaving;
  RowRecords arrived(std::accumulate(received.begin(), received.end(), int64_t{0}), row_bytes);
  const auto ranks = static_cast<size_t>(group->size());
  group->AllToAll(op, leaving.row(0), BytesOfRanks(sent, ranks, leaving.bytes()), arrived.row(0),
                  BytesOfRanks(received, ranks, arrived.bytes()));
  return arrived;
}

std::vector<int64_t> ExchangeCounts(const char* op, Communicator* group, const std::vector<int64_t>& sent) {
  if (group == nullptr) return sent;
  std::vector<int64_t> received(sent.size());
  const auto ranks = static_cast<size_t>(group->size());
  const std::vector<size_t> bytes(ranks, sent.size() / ranks * sizeof(int64_t));
  group->AllToAll(op, sent.data(), bytes, received.data(), bytes);
  return received;
}

void ForEachExpertBlock(const ExpertRanks& experts, const std::vector<int64_t>& counts,
                        const std::function<void(int64_t, int64_t, int64_t, int64_t, int64_t)>& f) {
  std::vector<int64_t> firsts(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), firsts.begin(), int64_t{0});
  int64_t place = 0;
  for (int64_t expert = 0; expert < experts.here(); ++expert) {
    for (int64_t rank = 0; rank < experts.ranks(); ++rank) {
      const auto at = static_cast<size_t>(rank * experts.of_rank() + expert);
      f(expert, rank, firsts[at], counts[at], place);
      place += counts[at];
    }
  }
}

}  // namespace npu
