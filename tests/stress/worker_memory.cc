// Allocations, what kernels do with them, and copies.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "ep/runtime/error.h"
#include "ep/runtime/thread_pool.h"
#include "tests/stress/worker.h"

namespace npu::stress {
namespace {

constexpr size_t kMostBuffers = 12;
constexpr int64_t kGrain = 16384;

// Some kernels are slow, so that streams drift apart.
void Dawdle(uint64_t chance) {
  if (chance % 8 == 0) std::this_thread::yield();
  if (chance % 24 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance / 24 % 200));
}

}  // namespace

size_t Worker::SomeCount() {
  const size_t kind = Upto(100);
  if (kind < 85) return 1 + Upto(512);
  if (kind < 99) return 1 + Upto(40000);
  return 140000 + Upto(100000);  // allocated from large segments
}

// Only a concurrent AskTooMuch may cause out of memory.
BufferPtr Worker::NewBuffer(OwnStream& s, size_t count) {
  Interval& greedy = world_.greedy[static_cast<size_t>(s.device)];
  for (;;) {
    const uint64_t since = greedy.Now();
    try {
      auto memory = std::make_shared<Memory>(world_, s.stream->device(), count, *s.stream);
      return std::make_shared<Buffer>(Buffer{std::move(memory), std::nullopt, &s});
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kOutOfMemory || !greedy.Since(since)) throw;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

BufferPtr Worker::SomeBuffer(OwnStream& s) {
  std::vector<BufferPtr> here;
  for (const BufferPtr& buffer : buffers_)
    if (buffer->home == &s) here.push_back(buffer);
  if (!here.empty() && (Chance(80) || buffers_.size() >= kMostBuffers)) return here[Upto(here.size())];
  const BufferPtr buffer = NewBuffer(s, SomeCount());
  Keep(buffer);
  return buffer;
}

void Worker::Keep(BufferPtr buffer) {
  if (buffers_.size() >= kMostBuffers)
    buffers_.erase(buffers_.begin() + static_cast<std::ptrdiff_t>(Upto(buffers_.size())));
  buffers_.push_back(std::move(buffer));
}

void Worker::MoveTo(Buffer& buffer, OwnStream& s) {
  OwnStream& home = *buffer.home;
  if (&home == &s) return;
  if (!home.failure.empty() && Chance(70)) Synchronize(home);
  Wait(s, Record(home));
  buffer.memory->device().allocator().RecordStream(buffer.data(), *s.stream);
  buffer.home = &s;
}

void Worker::FillBuffer(OwnStream& s, BufferPtr buffer, Pattern pattern) {
  uint64_t* const data = buffer->data();
  const size_t count = buffer->count();
  Launch(s, "stress_fill", Task([=, chance = random_()] {
           Dawdle(chance);
           ParallelFor(static_cast<int64_t>(count), kGrain, [=](int64_t begin, int64_t end) {
             const auto from = static_cast<size_t>(begin);
             Fill(data + from, static_cast<size_t>(end) - from, {pattern.At(from), pattern.step});
           });
         }),
         [=] {
           buffer->value = pattern;
           return Fault();
         });
}

void Worker::ScaleBuffer(OwnStream& s, BufferPtr buffer) {
  uint64_t* const data = buffer->data();
  const size_t count = buffer->count();
  const uint64_t factor = random_() | 1, plus = random_();
  Launch(s, "stress_scale", Task([=] {
           Dawdle(plus);
           ParallelFor(static_cast<int64_t>(count), kGrain, [=](int64_t begin, int64_t end) {
             Scale(data + begin, static_cast<size_t>(end - begin), factor, plus);
           });
         }),
         [=] {
           if (buffer->value) buffer->value = buffer->value->Scaled(factor, plus);
           return Fault();
         });
}

// `to` holds at most as many elements as `from`.
void Worker::MixBuffers(OwnStream& s, BufferPtr to, BufferPtr from) {
  uint64_t* const data = to->data();
  const uint64_t* const other = from->data();
  const size_t count = to->count();
  const uint64_t factor = random_() | 1;
  Launch(s, "stress_mix", Task([=] { Mix(data, other, count, factor); }), [=] {
    if (to->value && from->value) {
      to->value = to->value->Scaled(factor, 0).Plus(*from->value);
    } else {
      to->value.reset();
    }
    return Fault();
  });
}

void Worker::Upload(OwnStream& s, BufferPtr buffer, std::vector<std::shared_ptr<void>>& kept) {
  auto host = std::make_shared<std::vector<uint64_t>>(buffer->count());
  const Pattern pattern = SomePattern();
  Fill(host->data(), host->size(), pattern);
  kept.push_back(host);
  if (s.script != nullptr) {
    s.stream->Copy(buffer->data(), host->data(), buffer->memory->bytes(), CopyKind::kHostToDevice);
    s.script->effects.push_back([=] {
      buffer->value = pattern;
      return Fault();
    });
    return;
  }
  JoinDebts(s);
  ++s.queued;
  s.stream->Copy(buffer->data(), host->data(), buffer->memory->bytes(), CopyKind::kHostToDevice);
  if (s.failure.empty()) buffer->value = pattern;
}

// Checks the values in stream order.
void Worker::VerifyInOrder(OwnStream& s, const Buffer& buffer) {
  if (!buffer.value.has_value()) return;
  const uint64_t* const data = buffer.data();
  Launch(s, "stress_verify",
         Task([=, count = buffer.count(), expected = *buffer.value, &world = world_, number = number_] {
           const std::string wrong = Mismatch(data, count, expected);
           if (!wrong.empty()) world.Differ(Concat("thread ", number, ": a kernel saw a wrong value: ", wrong));
         }),
         [] { return Fault(); });
}

void Worker::ReadBack(OwnStream& s, const Buffer& buffer) {
  Read read{std::make_shared<std::vector<uint64_t>>(buffer.count(), kUntouched.base), std::nullopt};
  JoinDebts(s);
  ++s.queued;
  s.stream->Copy(read.host->data(), buffer.data(), buffer.memory->bytes(), CopyKind::kDeviceToHost);
  if (s.failure.empty()) {
    read.expected = buffer.value;
  } else {
    read.expected = kUntouched;
  }
  s.reads.push_back(std::move(read));
}

void Worker::Compute() {
  OwnStream& s = SomeStream();
  const BufferPtr buffer = SomeBuffer(s);
  if (!buffer->value.has_value()) FillBuffer(s, buffer, SomePattern());
  switch (Upto(4)) {
    case 0:
      FillBuffer(s, buffer, SomePattern());
      break;
    case 1:
      ScaleBuffer(s, buffer);
      break;
    case 2: {
      const BufferPtr other = SomeBuffer(s);
      if (buffer == other) break;
      other->count() >= buffer->count() ? MixBuffers(s, buffer, other) : MixBuffers(s, other, buffer);
      break;
    }
    default:
      VerifyInOrder(s, *buffer);
      break;
  }
}

void Worker::FailTask() {
  OwnStream& s = SomeStream();
  const Fault text = World::FaultText(world_.NewFaultNumber(), number_);
  Note(Concat("stream ", s.stream->id(), " fails with ", text));
  Launch(s, "stress_fail", Task([text, kind = Upto(3)] {
           if (kind == 0) throw std::runtime_error(text);
           if (kind == 1) Fail(ErrorCode::kInvalidArgument, text);
           Fail(ErrorCode::kInternal, "[stress_fail] ", text);
         }),
         [=] { return "[stress_fail] " + text; });
}

void Worker::AllocateOne() {
  OwnStream& s = SomeStream();
  const BufferPtr buffer = NewBuffer(s, SomeCount());
  Keep(buffer);
  if (Chance(80)) FillBuffer(s, buffer, SomePattern());
}

void Worker::FreeOne() {
  if (buffers_.empty()) return;
  const auto chosen = buffers_.begin() + static_cast<std::ptrdiff_t>(Upto(buffers_.size()));
  const BufferPtr buffer = *chosen;
  if (Chance(50) && buffer->value) ReadBack(*buffer->home, *buffer);
  buffers_.erase(chosen);
}

void Worker::FreeInTask() {
  if (buffers_.empty()) return;
  const auto chosen = buffers_.begin() + static_cast<std::ptrdiff_t>(Upto(buffers_.size()));
  const BufferPtr buffer = *chosen;
  buffers_.erase(chosen);
  Launch(*buffer->home, "stress_free", Task([memory = std::move(buffer->memory)]() mutable { memory.reset(); }),
         [] { return Fault(); });
}

void Worker::MoveOne() {
  OwnStream& from = SomeStream();
  const BufferPtr buffer = SomeBuffer(from);
  OwnStream& to = *SomeStreamOn(from.device, &from);
  MoveTo(*buffer, to);
  VerifyInOrder(to, *buffer);
}

void Worker::CopyOne() {
  OwnStream& s = SomeStream();
  const BufferPtr buffer = SomeBuffer(s);
  if (!buffer->value.has_value() || Chance(30)) Upload(s, buffer, s.kept);
  ReadBack(s, *buffer);
  if (s.reads.size() > 8) Synchronize(s);
}

void Worker::LookUp() {
  if (buffers_.empty()) return;
  const Memory& memory = *buffers_[Upto(buffers_.size())]->memory;
  CachingAllocator& allocator = memory.device().allocator();
  const char* const begin = reinterpret_cast<const char*>(memory.data());
  if (allocator.SizeOf(begin) < memory.bytes())
    Differ("SizeOf: expected at least ", memory.bytes(), ", got ", allocator.SizeOf(begin));
  if (allocator.LiveBlockAround(begin + memory.bytes() - 1) != begin)
    Differ("LiveBlockAround: expected the block that holds the address");
  if (Chance(10)) allocator.Snapshot();
  const AllocatorStats stats = allocator.Stats();
  if (stats.allocated_bytes.all.current < static_cast<int64_t>(memory.bytes()))
    Differ("Stats: expected at least ", memory.bytes(), " bytes, got ", stats.allocated_bytes.all.current);
}

void Worker::AskTooMuch() {
  OwnStream& s = SomeStream();
  CachingAllocator& allocator = s.stream->device().allocator();
  const auto ask = [&](size_t bytes, bool must_fail) {
    try {
      void* const all = allocator.Allocate(bytes, *s.stream);
      allocator.Free(all);
      if (must_fail) Differ("an allocation beyond the limit succeeded");
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kOutOfMemory) Differ("an allocation beyond the limit threw: ", e.what());
    }
  };
  if (Chance(50)) return ask(World::kMemoryLimit + 1, true);
  Interval& greedy = world_.greedy[static_cast<size_t>(s.device)];
  greedy.Begin();
  ask(World::kMemoryLimit / 4 * 3, false);
  greedy.End();
}

void Worker::EmptyCaches() { world_.device(Upto(World::kDevices)).allocator().EmptyCache(); }

}  // namespace npu::stress
