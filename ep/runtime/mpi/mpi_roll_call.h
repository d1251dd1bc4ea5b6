// Which ranks of a group have not noticed that an exchange failed: they ended, or stand still.
#pragma once

#include <chrono>
#include <vector>

#include "ep/runtime/mpi/mpi_library.h"
#include "ep/runtime/roll_call.h"

namespace npu {

// Each rank that gives the group up reports it to all others, by messages with a tag of their own. Once in a group's
// life, because a group is lost then.
class MpiRollCall {
 public:
  MpiRollCall(const MpiLibrary& mpi, MpiHandle world, std::vector<int> members, size_t rank, int tag);

  // Whether another rank has given the group up; does not wait.
  bool Begun();
  // Reports that this rank gives it up after `waited`, and waits up to `patience` for the others' reports.
  RankReports Complete(std::chrono::milliseconds waited, std::chrono::milliseconds patience);

 private:
  void Send(std::chrono::milliseconds waited);
  void Receive();

  const MpiLibrary& mpi_;
  const MpiHandle world_;
  const std::vector<int> members_;
  const size_t rank_;
  const int tag_;
  RankReports reports_;
};

}  // namespace npu
