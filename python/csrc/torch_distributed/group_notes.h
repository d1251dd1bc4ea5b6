// What the ranks of a group tell each other of their waiting, in the group's store.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace npu::distributed {

class GroupNotes {
 public:
  GroupNotes(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // This rank waits for others at `place`, a name that all ranks give it. Without a store nobody learns of it.
  void TellWaiting(const std::string& place) noexcept;
  // Whether a rank waits there.
  bool IsWaiting(const std::string& place);
  // Whether this rank looks for the group of a call that it does not know, and whether all others do.
  void TellSearch(bool searching);
  bool OthersSearch();

 private:
  bool Says(const std::string& key, const std::string& text);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
};

}  // namespace npu::distributed
