// Which ranks of a group look for the group of a call that they do not know.
#pragma once

#include <vector>

#include "ep/runtime/mpi/mpi_library.h"

namespace npu {

// Ranks tell it to each other, by messages with a tag of their own.
class MpiSearches {
 public:
  MpiSearches(const MpiLibrary& mpi, MpiHandle world, std::vector<int> members, size_t rank, int tag);

  void Tell(bool searching);
  bool AllOthers();

 private:
  const MpiLibrary& mpi_;
  const MpiHandle world_;
  const std::vector<int> members_;
  const size_t rank_;
  const int tag_;
  std::vector<char> searching_;  // as the ranks have told last
};

}  // namespace npu
