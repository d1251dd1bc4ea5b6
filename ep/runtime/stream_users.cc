#include "ep/runtime/stream_users.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace npu {
namespace {

thread_local bool works_for_others = false;

// This thread as a user of each stream, by the stream's id.
struct Memberships {
  uint64_t last_id = 0;
  StreamUsers::User* last = nullptr;
  std::unordered_map<uint64_t, std::shared_ptr<StreamUsers::User>> users;

  ~Memberships() {
    last_id = 0;
    for (const auto& [id, user] : users) user->alive.store(false);
  }
};
thread_local Memberships memberships;

}  // namespace

void SetWorksForOthers(bool on) { works_for_others = on; }

StreamUsers::User* StreamUsers::FindMine() {
  if (memberships.last_id == stream_id_) [[likely]]
    return memberships.last;
  const auto found = memberships.users.find(stream_id_);
  if (found == memberships.users.end()) return nullptr;
  memberships.last_id = stream_id_;
  memberships.last = found->second.get();
  return memberships.last;
}

StreamUsers::User& StreamUsers::Mine() {
  if (User* found = FindMine()) [[likely]]
    return *found;
  auto user = std::make_shared<User>();
  {
    std::lock_guard lock(mutex_);
    std::erase_if(users_, [this](const auto& u) { return !u->alive.load() && u.get() != last_.load(); });
    users_.push_back(user);
  }
  memberships.last_id = stream_id_;
  memberships.last = user.get();
  memberships.users.emplace(stream_id_, std::move(user));
  return *memberships.last;
}

Status StreamUsers::TakeNews(User& user) {
  if (!user.has_news.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  user.has_news.store(false);
  return std::exchange(user.news, nullptr);
}

void StreamUsers::BeforeWork() {
  if (works_for_others) [[unlikely]] {
    std::lock_guard lock(mutex_);
    if (User* last = last_.load()) last->unconfirmed.store(true);
    return;
  }
  User& user = Mine();
  if (!user.unconfirmed.load(std::memory_order_relaxed)) {
    // In one order with telling_: whoever lets the stream run again now sees that it is in use, or this thread goes on
    // behind that.
    user.unconfirmed.store(true);
    AwaitTelling();
  }
  if (user.has_news.load(std::memory_order_relaxed)) [[unlikely]] {
    user.unconfirmed.store(false);
    ThrowIfFailed(TakeNews(user));
  }
  if (last_.load(std::memory_order_relaxed) != &user) {
    std::lock_guard lock(mutex_);  // a dead user is dropped under the same lock, unless it is the last
    last_.store(&user);
  }
}

// Whoever found the stream running again finds the news of it, too.
void StreamUsers::AwaitTelling() {
  if (!telling_.load()) [[likely]]
    return;
  std::lock_guard lock(mutex_);
}

Status StreamUsers::News() {
  User* me = FindMine();
  if (me == nullptr) return nullptr;
  AwaitTelling();
  return TakeNews(*me);
}

Status StreamUsers::AfterGoodWait() {
  User* me = FindMine();
  if (me == nullptr) return nullptr;
  AwaitTelling();
  me->unconfirmed.store(false, std::memory_order_relaxed);
  return TakeNews(*me);
}

void StreamUsers::AfterFailure(const Status& status, const std::function<void()>& resume) {
  User* me = FindMine();
  std::lock_guard lock(mutex_);
  telling_.store(true);
  bool owners = false;
  for (const auto& user : users_) owners |= user.get() != me && user->alive.load() && user->unconfirmed.load();
  const bool mine = me != nullptr && me->unconfirmed.exchange(false);
  if (me != nullptr && me->has_news.exchange(false)) me->news = nullptr;
  if (mine || !owners) {
    resume();
    // Behind it: what was launched before it, and is skipped, is marked by now.
    for (const auto& user : users_) {
      if (user.get() == me || !user->alive.load() || !user->unconfirmed.exchange(false)) continue;
      user->news = status;
      user->has_news.store(true, std::memory_order_release);
    }
  }
  telling_.store(false);
}

}  // namespace npu
