// Exchanges among ranks while the caller computes: an operator is cut into pieces, and the exchange of one runs beside
// the computation of another.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "ep/runtime/launch_trace.h"
#include "ep/runtime/worker_thread.h"

namespace npu {

// An exchange of fewer bytes takes about as long as waking the threads that make it.
constexpr int64_t kPieceBytes = 1 << 20;

// Rows of a piece: few pieces that are each worth a message. Depends on nothing in which ranks may differ.
inline int64_t RowsOfPiece(int64_t rows, size_t row_bytes) {
  constexpr int64_t kMostPieces = 8;
  const int64_t worth = kPieceBytes / std::max<int64_t>(1, static_cast<int64_t>(row_bytes)) + 1;
  return std::max((rows + kMostPieces - 1) / kMostPieces, worth);
}

class Overlap {
 public:
  // Without a thread of their own exchanges run on the caller's: with one piece a thread takes longer than it hides.
  explicit Overlap(bool threaded) : threaded_(threaded) {}
  ~Overlap() {
    {
      const std::lock_guard lock(mutex_);
      jobs_.clear();
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Overlap(const Overlap&) = delete;
  Overlap& operator=(const Overlap&) = delete;

  // Exchanges run one after the other; none runs after one that failed.
  void Add(std::function<void()> exchange) {
    ++added_;
    if (!threaded_) {
      const LaunchTrace::Part part("exchange");
      exchange();
      ++done_;
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(exchange));
    }
    if (!thread_.joinable()) thread_ = StartWorkerThread("npu_exchange", [this] { Run(); });
    changed_.notify_all();
  }

  // The caller's part, which a profile shows beside the exchanges.
  template <class F>
  void Compute(F&& part) {
    const LaunchTrace::Part shown("product");
    part();
  }

  // Whether the first `count` exchanges have ended, or one has failed.
  bool Ended(int64_t count) {
    const std::lock_guard lock(mutex_);
    return done_ >= count || error_ != nullptr;
  }

  // Waits for the first `count` exchanges, or all; throws what one of them has thrown.
  void Wait(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count || error_ != nullptr; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  void Wait() { Wait(added_); }

 private:
  void Run() {
    const LaunchTrace::Sharing sharing(launch_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        const LaunchTrace::Part part("exchange");
        job();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      ++done_;
      if (error != nullptr) {
        error_ = error;
        jobs_.clear();
      }
      changed_.notify_all();
      if (error_ != nullptr) return;
    }
  }

  const bool threaded_;
  LaunchSpan* const launch_ = LaunchTrace::Running();  // whose profile shows the exchanges
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  int64_t added_ = 0, done_ = 0;
  bool ending_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace npu
