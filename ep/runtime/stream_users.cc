#include "ep/runtime/stream_users.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace npu {
namespace {

// The thread-local state that each launch reads; trivial, because a destructor would cost a guard at each access.
struct Fast {
  bool works_for_others = false;
  uint64_t last_id = 0;  // the stream of the last call, and this thread as its user
  StreamUsers::User* last = nullptr;
};
constinit thread_local Fast fast;

// This thread as a user of each stream, by the stream's id.
struct Memberships {
  std::unordered_map<uint64_t, std::shared_ptr<StreamUsers::User>> users;

  ~Memberships() {
    fast.last_id = 0;
    for (const auto& [id, user] : users) user->alive.store(false);
  }
};
thread_local Memberships memberships;

}  // namespace

void SetWorksForOthers(bool on) { fast.works_for_others = on; }

StreamUsers::User* StreamUsers::FindMine() {
  if (fast.last_id == stream_id_) [[likely]]
    return fast.last;
  const auto found = memberships.users.find(stream_id_);
  if (found == memberships.users.end()) return nullptr;
  fast.last_id = stream_id_;
  fast.last = found->second.get();
  return fast.last;
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
  User& mine = *user;
  memberships.users.emplace(stream_id_, std::move(user));
  fast.last_id = stream_id_;
  fast.last = &mine;
  return mine;
}

Status StreamUsers::TakeNews(User& user) {
  if (!user.has_news.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  user.has_news.store(false);
  return std::exchange(user.news, nullptr);
}

void StreamUsers::BeforeWork() {
  if (fast.works_for_others) [[unlikely]]
    return BeforeSilentWork();
  User& user = Mine();
  const bool claimed = Claim(user);
  if (user.has_news.load(std::memory_order_relaxed)) [[unlikely]] {
    if (claimed) user.unconfirmed.store(false);  // nothing will be launched
    ThrowIfFailed(TakeNews(user));
  }
  if (last_.load(std::memory_order_relaxed) != &user) {
    std::lock_guard lock(mutex_);  // a dead user is dropped under the same lock, except the last
    last_.store(&user);
  }
}

void StreamUsers::BeforeSilentWork() {
  if (fast.works_for_others) {
    std::lock_guard lock(mutex_);
    if (User* last = last_.load()) last->unconfirmed.store(true);
  } else {
    Claim(Mine());
  }
}

// Marks that the user has work on the stream; false: it had before. Sequentially consistent with telling_: a thread
// that resumes the stream now either sees the mark, or this thread continues behind the resume.
bool StreamUsers::Claim(User& user) {
  if (user.unconfirmed.load(std::memory_order_relaxed)) return false;
  user.unconfirmed.store(true);
  AwaitTelling();
  return true;
}

// A thread that finds the stream resumed must also find the news of it.
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
  if (!status->resumed && (mine || !owners)) {
    resume();
    status->resumed = true;
    // After the resume: launches before it, which are skipped, are marked by now.
    for (const auto& user : users_) {
      if (user.get() == me || !user->alive.load() || !user->unconfirmed.exchange(false)) continue;
      user->news = status;
      user->has_news.store(true, std::memory_order_release);
    }
  }
  telling_.store(false);
}

}  // namespace npu
