// Random numbers as positions in a Philox generator. What a capture draws is kept relative to where the generator
// stands when a replay begins, so that a replay draws what the work itself would have drawn, and each replay anew.
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

// A generator's state; graphs that draw from it share it.
class RandomSource {
 public:
  explicit RandomSource(PhiloxState state) : state_(state) {}
  PhiloxState state() const;
  void Set(PhiloxState state);
  PhiloxState Take(uint64_t counters);  // returns the state before

 private:
  mutable std::mutex mutex_;
  PhiloxState state_;
};

// Where a generator stood when the last replay of a graph began. Written by the replay, in stream order with the work
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

  // Call it inside the launch: only there does captured work know its replay.
  PhiloxState Now() const;

 private:
  PhiloxState state_;  // relative to the origin, if there is one
  std::shared_ptr<const ReplayOrigin> origin_;
};

// Takes `counters` blocks of four 32-bit words for work on `stream`. Where they begin is what the host passes on to the
// kernel. In a capture the seed only names the position: see DrawnPosition.
PhiloxState DrawPosition(const std::shared_ptr<RandomSource>& source, const Stream& stream, uint64_t counters);

// Where work that is launched on `stream` from now on begins to draw; in a capture, were it to be replayed where the
// generator stands now. There, a state can be set that has the generator's seed and is not before where it stands:
// else SetRandomState throws.
PhiloxState RandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream);
void SetRandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream, PhiloxState state);

// A seed that the host passes on as a number, never 0, for work on `stream`. In a capture the number only names the
// seed: see DrawnSeed.
uint64_t DrawSeed(const std::shared_ptr<RandomSource>& source, const Stream& stream);
// The same from a generator that nobody can seed: a node of an inference session has no other to ask.
uint64_t DrawSeed(const Stream& stream);

// A position that a kernel was given: numbers of the caller's, or those of DrawPosition, where every replay draws anew.
class DrawnPosition {
 public:
  explicit DrawnPosition(PhiloxState state);
  PhiloxState Now() const;  // inside the launch

 private:
  PhiloxState state_;
  std::shared_ptr<const RandomPosition> position_;  // where the seed only names it
};

// A seed that a kernel was given: a number of the caller's, or one of DrawSeed, which every replay draws anew.
class DrawnSeed {
 public:
  DrawnSeed() = default;
  DrawnSeed(uint64_t number);  // NOLINT: any number is a seed
  uint64_t Now() const;        // inside the launch

 private:
  uint64_t number_ = 0;
  std::shared_ptr<const RandomPosition> position_;  // where the number only names the seed
};

}  // namespace npu
