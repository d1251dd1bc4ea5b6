#include "ep/runtime/mpi/mpi_roll_call.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace npu {
namespace {

using Clock = std::chrono::steady_clock;
using Report = int64_t;  // milliseconds

constexpr std::chrono::milliseconds kBetweenLooks{1};

}  // namespace

MpiRollCall::MpiRollCall(const MpiLibrary& mpi, MpiHandle world, std::vector<int> members, size_t rank, int tag)
    : mpi_(mpi), world_(world), members_(std::move(members)), rank_(rank), tag_(tag), reports_(members_.size()) {}

bool MpiRollCall::Begun() {
  Receive();
  return std::any_of(reports_.begin(), reports_.end(), [](const auto& report) { return report.has_value(); });
}

RankReports MpiRollCall::Complete(std::chrono::milliseconds waited, std::chrono::milliseconds patience) {
  Send(waited);
  reports_[rank_] = waited;
  const auto all = [this] {
    return std::all_of(reports_.begin(), reports_.end(), [](const auto& report) { return report.has_value(); });
  };
  const Clock::time_point deadline = Clock::now() + patience;
  for (Receive(); !all() && Clock::now() < deadline; Receive()) std::this_thread::sleep_for(kBetweenLooks);
  return reports_;
}

void MpiRollCall::Send(std::chrono::milliseconds waited) {
  // Never freed: a rank that stands still may take its report at any time.
  const Report* report = new Report(waited.count());
  for (size_t r = 0; r < members_.size(); ++r) {
    MpiHandle request = mpi::kNoRequest;
    if (r != rank_)
      mpi_.Check(mpi_.Isend(report, sizeof(Report), mpi::kByte, members_[r], tag_, world_, &request), "a report");
  }
}

void MpiRollCall::Receive() {
  for (size_t r = 0; r < members_.size(); ++r) {
    if (r == rank_ || reports_[r].has_value()) continue;
    int there = 0;
    mpi_.Check(mpi_.Iprobe(members_[r], tag_, world_, &there, nullptr), "a report");
    if (there == 0) continue;
    Report report = 0;
    MpiHandle request = mpi::kNoRequest;
    mpi_.Check(mpi_.Irecv(&report, sizeof(Report), mpi::kByte, members_[r], tag_, world_, &request), "a report");
    for (int done = 0; done == 0;) mpi_.Check(mpi_.Test(&request, &done, nullptr), "a report");  // it has arrived
    reports_[r] = std::chrono::milliseconds(report);
  }
}

}  // namespace npu
