// Streams that all threads launch on. Invariants, whichever thread gets an error first: an error that this thread
// caused is reported to it, or one that hides it; every reported error was caused by some thread; and without an
// error, this thread reads what it computed.
#include <string>
#include <thread>
#include <utility>

#include "ep/runtime/error.h"
#include "tests/stress/worker.h"

namespace npu::stress {

// After an error, work of this thread may have been skipped.
void Worker::Told(SharedStream& shared, SharedState& state, const Error& error) {
  Note(Concat("was told on shared stream ", shared.stream->id(), ": ", error.what()));
  if (error.code() != ErrorCode::kDeviceError || !shared.Expected(error.what()))
    Differ("a shared stream threw an error that no thread caused: ", error.what());
  state.due.clear();
  for (Read& read : state.reads) read.expected.reset();
  if (state.buffer != nullptr) state.buffer->value.reset();
}

// One call on the stream. False if it reported an error.
bool Worker::LaunchOne(SharedStream& shared, SharedState& state) {
  Stream& stream = *shared.stream;
  Device& device = stream.device();
  // Pending failures of this thread would surface here: they are settled elsewhere.
  if (!debts_.empty()) Synchronize(*SomeStreamOn(device.index()));
  if (state.buffer == nullptr || Chance(20)) {
    OwnStream on;  // only for the allocation
    on.stream = std::shared_ptr<Stream>(std::shared_ptr<void>(), &stream);
    on.device = device.index();
    state.buffer = NewBuffer(on, 1 + Upto(512));
    state.buffer->home = nullptr;
  }
  const BufferPtr buffer = state.buffer;
  uint64_t* const data = buffer->data();
  const size_t count = buffer->count();
  try {
    switch (buffer->value ? Upto(6) : Upto(2)) {
      case 0:
      case 1: {
        const Pattern pattern = SomePattern();
        stream.Launch("stress_fill", Task([=] { Fill(data, count, pattern); }));
        buffer->value = pattern;
        break;
      }
      case 2: {
        const uint64_t factor = random_() | 1, plus = random_();
        stream.Launch("stress_scale", Task([=] { Scale(data, count, factor, plus); }));
        buffer->value = buffer->value->Scaled(factor, plus);
        break;
      }
      case 3: {
        const Fault text = World::FaultText(world_.NewFaultNumber(), number_);
        const Fault due = "[stress_fail] " + text;
        if (!Chance(30)) break;
        shared.Expect(due);
        Note(Concat("shared stream ", stream.id(), " fails with ", text));
        stream.Launch("stress_fail", Task([text] { Fail(ErrorCode::kInvalidArgument, text); }));
        if (state.due.empty()) state.due = due;
        break;
      }
      case 4: {
        OwnStream& from = SomeStream();
        if (from.failure.empty() && !Chance(30)) break;
        const Mark mark = Record(from);
        if (!mark.failure.empty()) shared.Expect(mark.failure);
        Note(Concat("shared stream ", stream.id(), " waits for stream ", from.stream->id(), ", ", mark.failure));
        stream.Wait(*mark.event);
        if (state.due.empty()) state.due = mark.failure;
        break;
      }
      default: {
        Read read{std::make_shared<std::vector<uint64_t>>(count, kUntouched.base), buffer->value};
        stream.Copy(read.host->data(), data, buffer->memory->bytes(), CopyKind::kDeviceToHost);
        state.reads.push_back(std::move(read));
        break;
      }
    }
  } catch (const Error& e) {
    Told(shared, state, e);
    return false;
  }
  return true;
}

void Worker::LaunchShared() {
  const size_t chosen = Upto(World::kShared);
  SharedStream& shared = world_.shared(chosen);
  SharedState& state = shared_[chosen];
  for (size_t i = 1 + Upto(6); i > 0; --i) LaunchOne(shared, state);
  if (state.reads.size() > 16 || Chance(50)) Settle(shared, state, static_cast<int>(Upto(3)));
}

void Worker::SettleShared() {
  const size_t chosen = Upto(World::kShared);
  Settle(world_.shared(chosen), shared_[chosen], static_cast<int>(Upto(3)));
}

// Waits for the stream, for an event on it, or polls until it is idle.
void Worker::Settle(SharedStream& shared, SharedState& state, int way) {
  Stream& stream = *shared.stream;
  if (!debts_.empty()) Synchronize(*SomeStreamOn(stream.device().index()));
  static constexpr const char* kWays[] = {"Stream::Synchronize of a shared stream",
                                          "Event::Synchronize of a shared stream", "Stream::Query of a shared stream"};
  const char* const before = doing_.exchange(kWays[way]);
  Fault still_due;
  try {
    bool over = false;
    if (way == 2) {
      for (int i = 0; i < 50 && !(over = stream.Query()); ++i) std::this_thread::yield();
    } else if (way == 1) {
      Event event(world_.backend());
      event.Record(stream);   // may throw, as a launch does
      still_due = state.due;  // an event does not consume the error: the stream reports it, too
      event.Synchronize();
      over = true;
    }
    if (!over) stream.Synchronize();
    if (!state.due.empty()) Differ(kWays[way], " did not throw, expected: ", state.due);
    CheckReads(kWays[way], state.reads);
  } catch (const Error& e) {
    Told(shared, state, e);
    state.due = still_due;
  }
  doing_.store(before);
  // Copies launched after an error are complete only when the stream is idle.
  if (way == 1) world_.backend().StreamSynchronize(stream.handle());
  state.reads.clear();
}

// A thread that ends without waiting for its launches.
void Worker::PassingThread() {
  SharedStream& shared = world_.shared(Upto(World::kShared));
  const Fault text = World::FaultText(world_.NewFaultNumber(), number_);
  const bool fails = Chance(50);
  shared.Expect("[stress_fail] " + text);
  std::thread([&] {
    try {
      shared.stream->Launch("stress_nothing", Task([] {}));
      if (fails) shared.stream->Launch("stress_fail", Task([text] { Fail(ErrorCode::kInvalidArgument, text); }));
    } catch (const Error& e) {
      if (!shared.Expected(e.what()))
        world_.Differ(Concat("a passing thread got an error that no thread caused: ", e.what()));
    }
  }).join();
}

}  // namespace npu::stress
