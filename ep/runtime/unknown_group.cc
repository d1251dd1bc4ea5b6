#include "ep/runtime/unknown_group.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ep/runtime/communicator.h"

namespace npu {
namespace {

using Clock = std::chrono::steady_clock;
using Group = std::shared_ptr<Communicator>;

constexpr std::chrono::milliseconds kPause{5};

std::vector<Group> UsableGroups() {
  std::vector<Group> groups = Communicators::Several();
  std::erase_if(groups, [](const Group& group) {
    const auto turn = group->TurnIfFree();
    return turn && group->lost();
  });
  return groups;
}

// Tells a group's other ranks of the search as long as it lasts.
class Search {
 public:
  explicit Search(Communicator& group) : group_(group) { group_.TellSearch(true); }
  ~Search() {
    try {
      End();
    } catch (const std::exception&) {
      // The transport is gone, and the others with it.
    }
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  void End() {
    if (std::exchange(lasts_, false)) group_.TellSearch(false);
  }

 private:
  Communicator& group_;
  bool lasts_ = true;
};

void Refuse(const char* op, const std::string& why) {
  const std::vector<Group> groups = UsableGroups();
  if (groups.empty()) return;
  // Where ranks meet that all search: the same group on all of them, if the largest one has all.
  const Group meeting = *std::max_element(groups.begin(), groups.end(),
                                          [](const Group& a, const Group& b) { return a->size() < b->size(); });
  std::chrono::milliseconds longest{0};
  for (const Group& group : groups) longest = std::max(longest, group->Timeout());
  Search search(*meeting);
  for (const Clock::time_point end = Clock::now() + longest; Clock::now() < end; std::this_thread::sleep_for(kPause)) {
    for (const Group& group : groups) {
      const auto turn = group->TurnIfFree();
      if (!turn || group->lost()) continue;
      if (!group->IsAwaited() && !(group == meeting && group->OthersSearch())) continue;
      search.End();  // before the others go on: their next search must not meet this one
      group->Connect(op);
      return group->Refuse(op, why);
    }
  }
}

}  // namespace

void RefuseWhereAwaited(const char* op, const std::string& why) noexcept {
  try {
    Refuse(op, why);
  } catch (const std::exception&) {
    // This rank reports its own error.
  }
}

}  // namespace npu
