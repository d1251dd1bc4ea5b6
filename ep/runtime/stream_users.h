// The threads that share a stream, and which of them have received its failures: docs/decisions/0012.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ep/runtime/status.h"

namespace npu {

// Threads that share a stream jointly own the work launched on it. After a failure, later work does not run until one
// of the threads that launched work since their last wait has received the failure; the others receive it at their next
// call.
class StreamUsers {
 public:
  // The stream's state of one thread.
  struct alignas(64) User {  // written at each launch: in a cache line of its own
    std::atomic<bool> alive{true};
    std::atomic<bool> unconfirmed{false};  // launched work since it last waited for the stream
    std::atomic<bool> has_news{false};
    Status news;  // a failure that another thread received meanwhile; guarded by mutex_
  };

  explicit StreamUsers(uint64_t stream_id) : stream_id_(stream_id) {}

  // To be called before this thread launches, or makes the stream wait. Throws News().
  void BeforeWork();
  // The same where nothing can be thrown: this thread's next call reports the news.
  void BeforeSilentWork();
  // A failure that another thread received before the stream was resumed; null: none that concerns this thread's work.
  Status News();
  // To be called when this thread waited for the stream and nothing had failed. Returns News().
  Status AfterGoodWait();
  // To be called when this thread waited for the stream and received `status`. Calls `resume`, which resumes the
  // stream, if this thread may do so; the other threads with work on the stream receive the failure later.
  void AfterFailure(const Status& status, const std::function<void()>& resume);

 private:
  User& Mine();
  bool Claim(User& user);
  User* FindMine();
  Status TakeNews(User& user);
  void AwaitTelling();

  const uint64_t stream_id_;
  std::atomic<User*> last_{nullptr};  // launched last; not dropped while it is here
  std::atomic<bool> telling_{false};  // the stream was resumed, but not every user has the news yet
  std::mutex mutex_;
  std::vector<std::shared_ptr<User>> users_;
};

// This thread launches on behalf of the thread that launched on a stream last, as torch's threads of the backward pass
// do: it never waits for its work, and receives no failures.
void SetWorksForOthers(bool on);

}  // namespace npu
