// What operators that communicate see of a process group.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "ep/runtime/communicator.h"
#include "python/csrc/torch_distributed/group_notes.h"
#include "python/csrc/torch_distributed/roll_call.h"

namespace npu::distributed {

class GroupCommunicator final : public Communicator {
 public:
  // Makes a group of the host with the same ranks, which wait for each other so long; all of them make the call.
  using ConnectHost = std::function<c10::intrusive_ptr<c10d::Backend>(std::chrono::milliseconds)>;

  GroupCommunicator(std::string name, int rank, int size, ConnectHost connect, std::chrono::milliseconds timeout,
                    std::shared_ptr<RollCall> roll_call, GroupNotes notes);

  // The first operator of a group connects it: most groups have none.
  void Connect(const char* op) override;
  void SetTimeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds Timeout() override;
  bool IsAwaited() override;
  void TellSearch(bool searching) override { notes_.TellSearch(searching); }
  bool OthersSearch() override { return notes_.OthersSearch(); }

 private:
  void GatherBytes(const void* sent, void* received, size_t bytes) override;
  void ExchangeBytes(const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                     const std::vector<size_t>& received_bytes) override;
  // Waits for what `start` begins; an error names the ranks that do not report one.
  void Wait(const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  // Gives the group up. Ranks that wait for this one, which waits for another, learn of it now and not after their
  // timeout: they would be taken for missing.
  void Close();

  ConnectHost connect_;
  const std::shared_ptr<RollCall> roll_call_;
  GroupNotes notes_;
  uint64_t exchanges_ = 0;    // that have succeeded; guarded by a turn, as is the next
  std::vector<char> copies_;  // of what is gathered
  std::mutex connecting_;
  c10::intrusive_ptr<c10d::Backend> host_;  // from the first operator on, until the group is lost
  bool closed_ = false;
  std::chrono::milliseconds timeout_;  // until which an error names the ranks that are missing
};

}  // namespace npu::distributed
