#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

constexpr size_t kMiB = size_t{1} << 20;

// A block that was freed while its stream, blocked at the gate, still uses it.
void* FreedInUse(TestDevice& t, Gate& gate) {
  void* p = t.allocator().Allocate(15 * kMiB, t.stream());
  t.stream().Launch("user", [&] { gate.Wait(); });
  t.allocator().Free(p);
  return p;
}

}  // namespace

TEST_CASE("a block freed while its stream is busy is reused immediately by that stream only") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  void* p = FreedInUse(t, gate);
  CHECK(t.allocator().Allocate(15 * kMiB, *other) != p);
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) == p);  // ordered after its former use
  gate.Open();
}

TEST_CASE("a block used by another stream is reused only after that stream has passed") {
  TestDevice t;
  const auto reader = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  void* p = t.allocator().Allocate(15 * kMiB, t.stream());
  reader->Launch("reader", [&] { gate.Wait(); });
  t.allocator().RecordStream(p, *reader);
  t.allocator().RecordStream(p, *reader);     // has no further effect
  t.allocator().RecordStream(p, t.stream());  // its own stream needs no event
  t.allocator().Free(p);
  AllocatorStats s = t.allocator().Stats();
  CHECK(s.allocated_bytes.all.current == 0);
  CHECK(s.active_bytes.all.current == 15 * kMiB + kMiB);  // a remainder of 1 MiB is not split off a 16 MiB segment
  void* q = t.allocator().Allocate(15 * kMiB, t.stream());
  CHECK(q != p);
  CHECK_THROWS_AS(t.allocator().CheckedFree(p), Error);
  gate.Open();
  reader->Synchronize();
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) == p);
}

TEST_CASE("a block used by two other streams waits for both") {
  TestDevice t;
  const auto one = t.device.CreateStream(), two = t.device.CreateStream();
  Gate gate_one, gate_two;
  OpenAtExit open_one{gate_one}, open_two{gate_two};
  void* p = t.allocator().Allocate(15 * kMiB, t.stream());
  one->Launch("reader", [&] { gate_one.Wait(); });
  two->Launch("reader", [&] { gate_two.Wait(); });
  t.allocator().RecordStream(p, *one);
  t.allocator().RecordStream(p, *two);
  t.allocator().Free(p);
  gate_two.Open();
  two->Synchronize();
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) != p);
  gate_one.Open();
  one->Synchronize();
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) == p);
}

TEST_CASE("blocks of a destroyed stream serve any stream, even those in use at its destruction") {
  TestDevice t;
  void *freed = nullptr, *live = nullptr;
  {
    const auto gone = t.device.CreateStream();
    freed = t.allocator().Allocate(15 * kMiB, *gone);
    live = t.allocator().Allocate(25 * kMiB, *gone);
    t.allocator().Free(freed);
  }
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) == freed);
  t.allocator().Free(live);
  const auto other = t.device.CreateStream();
  CHECK(t.allocator().Allocate(25 * kMiB, *other) == live);
}

TEST_CASE("shared free blocks of a stream serve any stream after its queued work") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  void* p = FreedInUse(t, gate);
  std::atomic<bool> shared = false;
  std::thread sharing([&] {
    t.allocator().ShareFreeBlocks(t.stream());
    shared = true;
  });
  void* q = t.allocator().Allocate(15 * kMiB, *other);
  CHECK(q != p);
  CHECK_FALSE(shared);
  gate.Open();
  sharing.join();
  const int64_t reserved = t.allocator().Stats().reserved_bytes.all.current;
  CHECK(t.allocator().Allocate(15 * kMiB, *other) == p);
  CHECK(t.allocator().Stats().reserved_bytes.all.current == reserved);
}

TEST_CASE("sharing one stream's blocks leaves those of other streams private") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  void* p = t.allocator().Allocate(15 * kMiB, *other);
  other->Launch("user", [&] { gate.Wait(); });
  t.allocator().Free(p);
  t.allocator().ShareFreeBlocks(t.stream());  // does not wait for the other stream
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) != p);
  gate.Open();
}

TEST_CASE("a stream can be destroyed between record_stream and free") {
  TestDevice t;
  void* p = t.allocator().Allocate(15 * kMiB, t.stream());
  {
    const auto reader = t.device.CreateStream();
    t.allocator().RecordStream(p, *reader);
  }
  t.allocator().Free(p);
  CHECK(t.allocator().Allocate(15 * kMiB, t.stream()) == p);
}

TEST_CASE("short-lived streams leave one unfragmented pool") {
  TestDevice t;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    const auto stream = t.device.CreateStream();
    blocks.push_back(t.allocator().Allocate(2 * kMiB, *stream));
  }
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 20 * kMiB);
  for (void* block : blocks) t.allocator().Free(block);
  CHECK(t.allocator().Stats().inactive_split.all.current == 0);
  t.allocator().EmptyCache();
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("empty_cache waits for the work that still uses freed memory") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  auto* p = static_cast<char*>(t.allocator().Allocate(30 * kMiB, t.stream()));
  t.stream().Launch("writer", [&] {
    gate.Wait();
    std::memset(p, 1, 30 * kMiB);  // faults if the memory was released
  });
  t.allocator().Free(p);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    gate.Open();
  });
  t.allocator().EmptyCache();
  CHECK(t.stream().Query());
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 0);
  opener.join();
}

TEST_CASE("a task may free memory while empty_cache waits for it") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  void* cached = t.allocator().Allocate(30 * kMiB, t.stream());
  void* held = t.allocator().Allocate(30 * kMiB, t.stream());
  t.stream().Launch("frees", [&] {
    gate.Wait();
    t.allocator().Free(held);
  });
  t.allocator().Free(cached);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    gate.Open();
  });
  t.allocator().EmptyCache();
  opener.join();
  t.stream().Synchronize();
  t.allocator().EmptyCache();
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("eight threads on three streams never share a block, and all memory is freed") {
  constexpr int kThreads = 8, kSteps = 1500;
  TestDevice t(96 * kMiB);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(t.device.CreateStream());
  std::atomic<int> torn{0}, unexpected{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back([&, k] {
      struct Mine {
        unsigned char* data;
        size_t bytes;
        unsigned char tag;
      };
      std::mt19937 random(static_cast<unsigned>(k));
      std::vector<Mine> mine;
      const auto free_one = [&](size_t i) {
        const Mine m = mine[i];
        mine[i] = mine.back();
        mine.pop_back();
        t.allocator().Free(m.data);
      };
      for (int step = 0; step < kSteps; ++step) {
        Stream& stream = *streams[random() % streams.size()];
        const size_t bytes = random() % 16 == 0 ? 1 + random() % (4 * kMiB) : 1 + random() % 20000;
        const auto tag = static_cast<unsigned char>(random());
        try {
          auto* data = static_cast<unsigned char*>(t.allocator().Allocate(bytes, stream));
          // In stream order: mark both ends, and check the marks later on the same stream.
          stream.Launch("write", [=] { data[0] = data[bytes - 1] = tag; });
          stream.Launch("check", [=, &torn] { torn += data[0] != tag || data[bytes - 1] != tag; });
          if (random() % 4 == 0) {
            Stream& reader = *streams[random() % streams.size()];
            if (&reader != &stream) {
              Event written(*t.backend);
              written.Record(stream);
              reader.Wait(written);
              reader.Launch("read", [=, &torn] { torn += data[0] != tag || data[bytes - 1] != tag; });
              t.allocator().RecordStream(data, reader);
            }
          }
          mine.push_back({data, bytes, tag});
        } catch (const Error& e) {
          unexpected += e.code() != ErrorCode::kOutOfMemory;
          if (!mine.empty()) free_one(random() % mine.size());
        }
        while (mine.size() > 8 || (!mine.empty() && random() % 3 == 0)) free_one(random() % mine.size());
        if (random() % 500 == 0) t.allocator().EmptyCache();
      }
      while (!mine.empty()) free_one(mine.size() - 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  t.device.Synchronize();
  CHECK(torn == 0);
  CHECK(unexpected == 0);
  t.allocator().EmptyCache();
  const AllocatorStats s = t.allocator().Stats();
  CHECK(s.reserved_bytes.all.current == 0);
  CHECK(s.segment.all.current == 0);
  CHECK(s.active.all.current == 0);
  CHECK(s.inactive_split_bytes.all.current == 0);
}

}  // namespace npu
