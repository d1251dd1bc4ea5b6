// Who shares a stream, and who of them has been told of what failed on it: docs/decisions/0012.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ep/runtime/status.h"

namespace npu {

// Threads that share a stream own together what they have launched on it. A failure lets nobody's later work run until
// one of those who launched work since they waited last has been told; the others are told at their next call.
class StreamUsers {
 public:
  // What the stream knows of one thread.
  struct alignas(64) User {  // written at each launch: in a cache line of its own
    std::atomic<bool> alive{true};
    std::atomic<bool> unconfirmed{false};  // launched work since it last waited for the stream
    std::atomic<bool> has_news{false};
    Status news;  // what others were told of meanwhile; guarded by the stream's mutex
  };

  explicit StreamUsers(uint64_t stream_id) : stream_id_(stream_id) {}

  // Before this thread launches, or lets the stream wait. Throws News().
  void BeforeWork();
  // The same where nothing can be told: that comes with this thread's next call.
  void BeforeSilentWork();
  // What another thread was told of before the stream ran again; null: nothing that concerns this one's work.
  Status News();
  // This thread waited for the stream, and nothing had failed. Returns News().
  Status AfterGoodWait();
  // This thread waited for the stream, and is told of `status`. Calls `resume`, which lets the stream run again, when
  // that is this thread's to do; who else launched work on it is told later.
  void AfterFailure(const Status& status, const std::function<void()>& resume);

 private:
  User& Mine();
  bool Claim(User& user);
  User* FindMine();
  Status TakeNews(User& user);
  void AwaitTelling();

  const uint64_t stream_id_;
  std::atomic<User*> last_{nullptr};  // who launched last; users are kept as long as the stream
  std::atomic<bool> telling_{false};  // the stream runs again, but not everybody has the news yet
  std::mutex mutex_;
  std::vector<std::shared_ptr<User>> users_;
};

// This thread launches for whoever launched on a stream last, as torch's threads of the backward pass do: it never
// waits for its work, and is not told of it.
void SetWorksForOthers(bool on);

}  // namespace npu
