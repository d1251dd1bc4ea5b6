// Ranks that exchange data: processes of one program, each with a part of a model. Operators that communicate see this
// interface, whatever carries the data: torch's process group in eager calls, MPI in sessions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace npu {

class Communicator {
 public:
  Communicator(std::string group, int rank, int size) : group_(std::move(group)), rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Connects the ranks, if that has been put off until the first use. Waits for all of them; to be called by the thread
  // that launches.
  virtual void Connect(const char* /*op*/) {}

  // An operator's turn: it makes the calls below while it holds the lock, on one thread at a time. All ranks take their
  // turns in the same order.
  [[nodiscard]] std::unique_lock<std::mutex> Turn() { return std::unique_lock(turn_); }
  // The same if nobody else has it, else a lock that holds nothing.
  [[nodiscard]] std::unique_lock<std::mutex> TurnIfFree() { return std::unique_lock(turn_, std::try_to_lock); }

  // Each call returns when this rank has all that it receives, and `sent` is no longer read. It throws
  // Error(kDeviceError), which names the operator and the ranks that were missing, within the group's timeout, of which
  // the last part is kept for the others' reports. Since nobody knows what has arrived where, the group is then lost:
  // later calls fail immediately.

  // `bytes` of every rank, in the order of ranks.
  void AllGather(const char* op, const void* sent, void* received, size_t bytes);
  // Blocks to and from each rank, which lie one behind the other in the order of ranks. The ranks have agreed on their
  // sizes.
  void AllToAll(const char* op, const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                const std::vector<size_t>& received_bytes);
  void Barrier(const char* op);

  // The check that all ranks make the same call, to be made before they exchange data of sizes that `call` tells.
  // Throws Error(kInvalidArgument) on every rank, if one of them differs; the group remains usable.
  void Agree(const char* op, const std::string& call);
  // The same for a call of which each rank tells numbers, as many as the others if it is the same call. Returns those
  // of all ranks, in the order of ranks. Few of them need no exchange of their own.
  std::vector<int32_t> AgreeOn(const char* op, const std::string& call, const std::vector<int32_t>& numbers);
  // Takes part in the others' Agree with an error of this rank, so that they fail now and not after their timeout.
  void Refuse(const char* op, const std::string& why) noexcept;

  // For a rank that looks for the group of a call; to be asked in a turn. None of these waits.
  bool lost() const { return !lost_.empty(); }
  virtual std::chrono::milliseconds Timeout() = 0;
  // Whether another rank waits for this one to make a call.
  virtual bool IsAwaited() = 0;
  // Whether this rank looks for the group of a call, and whether all others have told that they do.
  virtual void TellSearch(bool searching) = 0;
  virtual bool OthersSearch() = 0;

 protected:
  // Throw an error that says why, with the ranks that are missing. No blocks are longer than the process can hold.
  virtual void GatherBytes(const void* sent, void* received, size_t bytes) = 0;
  virtual void ExchangeBytes(const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                             const std::vector<size_t>& received_bytes) = 0;

 private:
  template <class F>
  void Attempt(const char* op, F&& exchange);

  const std::string group_;
  const int rank_, size_;
  std::mutex turn_;
  std::string lost_;  // why, once it is; guarded by a turn
};

// The groups of this process by name, as the attribute of an operator names them (torch_npu calls it hcom). A group is
// known as long as somebody holds it.
class Communicators {
 public:
  // The newest group of a name hides an earlier one.
  static void Add(const std::shared_ptr<Communicator>& communicator);
  // Throws Error(kInvalidArgument) for an unknown name.
  static std::shared_ptr<Communicator> Find(const char* op, const std::string& group);
  // Whether calls in this group may concern other ranks: it has several, or is unknown while there is a group of
  // several.
  static bool HasOthers(const std::string& group);
  // The groups of several ranks, in the order of their names.
  static std::vector<std::shared_ptr<Communicator>> Several();
};

}  // namespace npu
