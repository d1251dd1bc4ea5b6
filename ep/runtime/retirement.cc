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

#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

// How often the thread looks: what is retired is memory, which nobody waits for.
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
  void Add(Retired retired) {
    std::lock_guard lock(mutex_);
    ++pending_[retired.backend];
    added_.push_back(std::move(retired));
    if (!started_) {
      StartWorkerThread("npu-reaper", [this] { Work(); }).detach();
      started_ = true;
    }
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

}  // namespace

void Retire(Backend& backend, std::vector<BackendEvent*> events, std::function<void()> release) {
  if (InForkedChild()) return;
  Retired retired{&backend, std::move(events), std::move(release)};
  if (retired.Passed()) {
    retired.Release();
  } else {
    GetReaper().Add(std::move(retired));
  }
}

void FinishRetirements(const Backend& backend) { GetReaper().Finish(backend); }

}  // namespace npu
