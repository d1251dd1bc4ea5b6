#include "ep/runtime/retirement.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "ep/runtime/blocking.h"
#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

// Polling intervals of the thread: only memory is retired, for which no caller waits.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{20};

struct Retired {
  Backend* backend;
  std::vector<BackendEvent*> events;
  std::function<void()> release;

  bool Passed() {
    std::erase_if(events, [this](BackendEvent* event) {
      if (!backend->EventQuery(event)) return false;
      backend->DestroyEvent(event);
      return true;
    });
    return events.empty();
  }
  void Wait() {
    for (BackendEvent* event : events) backend->EventSynchronize(event);
  }
  void Release() noexcept {
    try {
      release();
    } catch (const std::exception& e) {
      NPU_LOG(kError, "retirement: ", e.what());
    }
  }
};

class Reaper {
 public:
  // Takes `retired`, or throws and leaves it unchanged.
  void Add(Retired& retired) {
    std::lock_guard lock(mutex_);
    if (!started_) {
      StartWorkerThread("npu-reaper", [this] { Work(); }).detach();
      started_ = true;
    }
    added_.reserve(added_.size() + 1);
    ++pending_[retired.backend];
    added_.push_back(std::move(retired));
    changed_.notify_one();
  }

  void Finish(const Backend& backend) {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return pending_.count(&backend) == 0; });
  }

 private:
  void Work() {
    std::vector<Retired> waiting;
    for (auto pause = kShortestPause;; pause = std::min(pause * 2, kLongestPause)) {
      {
        std::unique_lock lock(mutex_);
        const auto any = [this] { return !added_.empty(); };
        if (waiting.empty()) {
          changed_.wait(lock, any);
        } else {
          changed_.wait_for(lock, pause, any);
        }
        if (any()) pause = kShortestPause;
        std::move(added_.begin(), added_.end(), std::back_inserter(waiting));
        added_.clear();
      }
      // Releases may retire more, so they run without the lock.
      std::erase_if(waiting, [this](Retired& retired) {
        if (!retired.Passed()) return false;
        retired.Release();
        retired.release = nullptr;
        Count(retired.backend);
        return true;
      });
    }
  }

  void Count(const Backend* backend) {
    std::lock_guard lock(mutex_);
    const auto found = pending_.find(backend);
    if (--found->second == 0) pending_.erase(found);
    released_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_, released_;
  std::vector<Retired> added_;
  std::map<const Backend*, size_t> pending_;
  bool started_ = false;
};

// Never destroyed: see Runtime::Instance.
Reaper& GetReaper() {
  static Reaper& reaper = *new Reaper;
  return reaper;
}

// Used if the thread cannot be started. False if the wait fails, as it does in a task of the awaited stream: the
// objects are then leaked, which is better than releasing them under work in flight.
template <class F>
bool WaitHere(const std::exception& why, F&& wait) noexcept {
  NPU_LOG(kWarning, "retirement: waits, since ", why.what());
  const MayBlock scope;
  try {
    wait();
    return true;
  } catch (const std::exception& e) {
    NPU_LOG(kError, "retirement: ", e.what(), "; what it was to release stays");
    return false;
  }
}

}  // namespace

void Retire(Backend& backend, std::vector<BackendEvent*> events, std::function<void()> release) noexcept {
  if (InForkedChild()) return;
  Retired retired{&backend, std::move(events), std::move(release)};
  try {
    if (!retired.Passed()) return GetReaper().Add(retired);
  } catch (const std::exception& e) {
    if (!WaitHere(e, [&] { retired.Wait(); })) return;
    retired.Passed();
  }
  retired.Release();
}

void RetireAfter(Backend& backend, const std::vector<BackendStream*>& streams, std::function<void()> release) noexcept {
  if (InForkedChild()) return;
  std::vector<BackendEvent*> events;
  for (BackendStream* stream : streams) {
    if (backend.StreamQuery(stream)) continue;
    BackendEvent* passed = nullptr;
    try {
      events.reserve(streams.size());
      passed = backend.CreateEvent(/*timing=*/false);
      backend.EventRecord(passed, stream);
      events.push_back(passed);
    } catch (const std::exception& e) {
      if (passed != nullptr) backend.DestroyEvent(passed);
      if (WaitHere(e, [&] { backend.StreamSynchronize(stream); })) continue;
      for (BackendEvent* event : events) backend.DestroyEvent(event);
      return;
    }
  }
  Retire(backend, std::move(events), std::move(release));
}

void FinishRetirements(const Backend& backend) { GetReaper().Finish(backend); }

}  // namespace npu
