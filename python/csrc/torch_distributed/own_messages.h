// Messages that a rank sends to itself: the host's group connects it with others only.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace npu::distributed {

class OwnMessages {
 public:
  struct Message {
    at::Tensor header, data;  // of the host, which nobody changes any more
  };

  void Put(int tag, Message message) {
    {
      const std::lock_guard lock(mutex_);
      sent_[tag].push_back(std::move(message));
    }
    changed_.notify_all();
  }

  // The first one of the tag that was not taken yet. Throws if none is sent within `limit`.
  Message Take(int tag, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(changed_.wait_for(lock, limit, [&] { return !sent_[tag].empty(); }),
                "this rank has sent itself nothing within ", limit.count(), " ms");
    Message message = std::move(sent_[tag].front());
    sent_[tag].pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::deque<Message>> sent_;  // by tag
};

}  // namespace npu::distributed
