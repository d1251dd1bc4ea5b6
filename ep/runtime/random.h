// Random numbers as positions in a Philox generator. Captured draws are stored relative to the generator's state when a
// replay begins, so that a replay draws what the work itself would have drawn, and each replay draws anew.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace npu {

class Stream;

struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// A generator's state, shared with the graphs that draw from it.
class RandomSource {
 public:
  explicit RandomSource(PhiloxState state) : state_(state) {}
  PhiloxState state() const;
  void Set(PhiloxState state);
  PhiloxState Take(uint64_t counters);  // returns the previous state

 private:
  mutable std::mutex mutex_;
  PhiloxState state_;
};

// The state of a generator when the last replay of a graph began. Written by the replay, in stream order with the work
// that reads it.
class ReplayOrigin {
 public:
  PhiloxState Get() const { return {seed_.load(std::memory_order_relaxed), offset_.load(std::memory_order_relaxed)}; }
  void Set(PhiloxState state) {
    seed_.store(state.seed, std::memory_order_relaxed);
    offset_.store(state.offset, std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> seed_{0}, offset_{0};
};

class RandomPosition {
 public:
  RandomPosition() = default;
  explicit RandomPosition(PhiloxState state) : state_(state) {}
  RandomPosition(std::shared_ptr<const ReplayOrigin> origin, uint64_t counters)
      : state_{0, counters}, origin_(std::move(origin)) {}

  // To be called inside the launch: only there is the current replay known.
  PhiloxState Now() const;

 private:
  PhiloxState state_;  // relative to the origin, if there is one
  std::shared_ptr<const ReplayOrigin> origin_;
};

// Takes `counters` blocks of four 32-bit words for work on `stream` and returns where they begin, which the host passes
// to the kernel. In a capture the seed only names the position: see DrawnPosition.
PhiloxState DrawPosition(const std::shared_ptr<RandomSource>& source, const Stream& stream, uint64_t counters);

// The state from which work launched on `stream` from now on draws; in a capture, as if it were replayed from the
// generator's current state. In a capture, SetRandomState throws unless the new state has the generator's seed and is
// not before its current state.
PhiloxState RandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream);
void SetRandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream, PhiloxState state);

// A seed for work on `stream` that the host passes as a number, never 0. In a capture the number only names the seed:
// see DrawnSeed.
uint64_t DrawSeed(const std::shared_ptr<RandomSource>& source, const Stream& stream);
// The same from a generator that cannot be seeded, for nodes of an inference session, which have no other.
uint64_t DrawSeed(const Stream& stream);

// A position passed to a kernel: the caller's own numbers, or those of DrawPosition, for which every replay draws anew.
class DrawnPosition {
 public:
  explicit DrawnPosition(PhiloxState state);
  PhiloxState Now() const;  // inside the launch

 private:
  PhiloxState state_;
  std::shared_ptr<const RandomPosition> position_;  // set if the seed only names it
};

// A seed passed to a kernel: the caller's own number, or one of DrawSeed, for which every replay draws anew.
class DrawnSeed {
 public:
  DrawnSeed() = default;
  DrawnSeed(uint64_t number);  // NOLINT: any number is a seed
  uint64_t Now() const;        // inside the launch

 private:
  uint64_t number_ = 0;
  std::shared_ptr<const RandomPosition> position_;  // set if the number only names the seed
};

}  // namespace npu
