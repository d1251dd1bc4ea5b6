// Groups of ranks over MPI.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ep/runtime/communicator.h"

namespace npu {

// All ranks of the program, which mpiexec has started. One per process.
class MpiWorld {
 public:
  // Initializes MPI, unless the program has done so, and waits up to `timeout` for the other ranks. MPI that this has
  // initialized is finalized when the process ends, unless a group was lost. `library` matters only the first time.
  // Throws Error(kUnsupported) without such a library or threads in it, Error(kDeviceError) without the others.
  static MpiWorld& Join(const std::string& library, std::chrono::milliseconds timeout);

  int rank() const;
  int size() const;
  // The group `name` of the ranks `members` of the world, in this order; all of them make this call, with different
  // names for different members. This rank is one of them. The group exists until the process ends, with the timeout of
  // the first call.
  std::shared_ptr<Communicator> Group(const std::string& name, const std::vector<int>& members,
                                      std::chrono::milliseconds timeout);

  struct State;

 private:
  explicit MpiWorld(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace npu
