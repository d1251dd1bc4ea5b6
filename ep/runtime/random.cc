#include "ep/runtime/random.h"

#include <random>
#include <unordered_map>

#include "ep/runtime/error.h"
#include "ep/runtime/graph_recording.h"

namespace npu {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Fits int64, the type of seeds in torch and ONNX, and is not 0, which they treat as no seed.
uint64_t SeedAt(PhiloxState state) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t seed = Mix(Mix(state.seed + kGolden) + (state.offset + 1) * kGolden) >> 1;
  return seed == 0 ? 1 : seed;
}

PhiloxState Unpredictable() {
  std::random_device device;
  return {static_cast<uint64_t>(device()) << 32 | device(), 0};
}

// Captured positions by the number that names them, as long as their graph may launch work with it.
class CapturedPositions {
 public:
  uint64_t Add(const std::shared_ptr<const RandomPosition>& position) {
    std::lock_guard lock(mutex_);
    std::erase_if(positions_, [](const auto& entry) { return entry.second.expired(); });
    const uint64_t number = SeedAt(names_.Take(1));
    positions_[number] = position;
    any_.store(true, std::memory_order_relaxed);
    return number;
  }
  std::shared_ptr<const RandomPosition> Find(uint64_t number) {
    if (!any_.load(std::memory_order_relaxed)) return nullptr;
    std::lock_guard lock(mutex_);
    const auto found = positions_.find(number);
    return found == positions_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  RandomSource names_{Unpredictable()};  // unlike any generator's seeds
  std::unordered_map<uint64_t, std::weak_ptr<const RandomPosition>> positions_;
};

CapturedPositions& Captured() {
  static CapturedPositions& captured = *new CapturedPositions;
  return captured;
}

// The number is valid while the graph exists; if the capture has just ended, it names nothing.
uint64_t NameOf(const RandomPosition& position, const Stream& stream) {
  const auto named = std::make_shared<const RandomPosition>(position);
  Recording::Keep(stream, named);
  return Captured().Add(named);
}

}  // namespace

PhiloxState RandomSource::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void RandomSource::Set(PhiloxState state) {
  std::lock_guard lock(mutex_);
  state_ = state;
}

PhiloxState RandomSource::Take(uint64_t counters) {
  std::lock_guard lock(mutex_);
  const PhiloxState before = state_;
  state_.offset += counters;
  return before;
}

PhiloxState RandomPosition::Now() const {
  if (origin_ == nullptr) return state_;
  const PhiloxState begin = origin_->Get();
  return {begin.seed, begin.offset + state_.offset};
}

PhiloxState RandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream) {
  PhiloxState state = source->state();
  uint64_t captured = 0;
  if (Recording::Drawn(stream, source, captured)) state.offset += captured;
  return state;
}

void SetRandomState(const std::shared_ptr<RandomSource>& source, const Stream& stream, PhiloxState state) {
  if (!Graph::IsCapturing(stream)) return source->Set(state);
  const PhiloxState origin = source->state();
  NPU_CHECK(state.seed == origin.seed, "[generator] expected the seed ", origin.seed, ", got ", state.seed,
            ": NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
            "the original seed.");
  NPU_CHECK(state.offset >= origin.offset, "[generator] expected a position of ", origin.offset,
            " or more, where the generator of the capture stands, got ", state.offset,
            ": set states from before the capture outside of it");
  Recording::SetDrawn(stream, source, state.offset - origin.offset);
}

uint64_t DrawSeed(const std::shared_ptr<RandomSource>& source, const Stream& stream) {
  RandomPosition position;
  if (!Recording::KeepDraw(stream, source, 1, position)) return SeedAt(source->Take(1));
  return NameOf(position, stream);
}

uint64_t DrawSeed(const Stream& stream) {
  static const auto& source = *new std::shared_ptr<RandomSource>(std::make_shared<RandomSource>(Unpredictable()));
  return DrawSeed(source, stream);
}

PhiloxState DrawPosition(const std::shared_ptr<RandomSource>& source, const Stream& stream, uint64_t counters) {
  RandomPosition position;
  if (!Recording::KeepDraw(stream, source, counters, position)) return source->Take(counters);
  return {NameOf(position, stream), 0};
}

DrawnPosition::DrawnPosition(PhiloxState state)
    : state_(state), position_(state.offset == 0 ? Captured().Find(state.seed) : nullptr) {}

PhiloxState DrawnPosition::Now() const { return position_ == nullptr ? state_ : position_->Now(); }

DrawnSeed::DrawnSeed(uint64_t number) : number_(number), position_(Captured().Find(number)) {}

uint64_t DrawnSeed::Now() const { return position_ == nullptr ? number_ : SeedAt(position_->Now()); }

}  // namespace npu
