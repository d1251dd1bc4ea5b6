#include "ep/runtime/mpi/mpi_searches.h"

#include <utility>

namespace npu {
namespace {

constexpr char kTold[] = {0, 1};  // MPI may read it at any time

}  // namespace

MpiSearches::MpiSearches(const MpiLibrary& mpi, MpiHandle world, std::vector<int> members, size_t rank, int tag)
    : mpi_(mpi), world_(world), members_(std::move(members)), rank_(rank), tag_(tag), searching_(members_.size(), 0) {}

void MpiSearches::Tell(bool searching) {
  for (size_t r = 0; r < members_.size(); ++r) {
    if (r == rank_) continue;
    MpiHandle request = mpi::kNoRequest;
    mpi_.Check(mpi_.Isend(&kTold[searching], 1, mpi::kByte, members_[r], tag_, world_, &request), "a notice");
  }
}

bool MpiSearches::AllOthers() {
  bool all = true;
  for (size_t r = 0; r < members_.size(); ++r) {
    if (r == rank_) continue;
    for (int there = 1; there != 0;) {
      mpi_.Check(mpi_.Iprobe(members_[r], tag_, world_, &there, nullptr), "a notice");
      if (there == 0) break;
      MpiHandle request = mpi::kNoRequest;
      mpi_.Check(mpi_.Irecv(&searching_[r], 1, mpi::kByte, members_[r], tag_, world_, &request), "a notice");
      for (int done = 0; done == 0;) mpi_.Check(mpi_.Test(&request, &done, nullptr), "a notice");  // it has arrived
    }
    all = all && searching_[r] != 0;
  }
  return all;
}

}  // namespace npu
