// The allocator under load from many threads: run under ThreadSanitizer by tools/sanitize.sh thread.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Allocates, writes on a stream, shares, checks and frees blocks; detects a block that was allocated twice.
void Hammer(Device& device, Stream& mine, Stream& shared, unsigned seed, std::atomic<int>& wrong) {
  std::mt19937 random(seed);
  struct Held {
    uint32_t* data;
    size_t words;
    uint32_t mark;
  };
  std::vector<Held> held;
  CachingAllocator& a = device.allocator();
  for (int i = 0; i < 300; ++i) {
    if (held.size() < 8 && random() % 3 != 0) {
      const size_t bytes = random() % 4 == 0 ? kMiB + random() % (3 * kMiB) : 4 + random() % 4096;
      Held h{nullptr, bytes / 4, seed * 1000003u + static_cast<uint32_t>(i)};
      try {
        h.data = static_cast<uint32_t*>(a.Allocate(bytes, mine));
      } catch (const Error&) {
        continue;  // out of memory: the device stays usable
      }
      mine.Launch("write", Task([h] { h.data[0] = h.data[h.words - 1] = h.mark; }));
      held.push_back(h);
    } else if (!held.empty()) {
      const size_t at = random() % held.size();
      const Held h = held[at];
      held.erase(held.begin() + static_cast<ptrdiff_t>(at));
      if (random() % 2 == 0) {
        Event written(device.backend());
        written.Record(mine);
        shared.Wait(written);
        shared.Launch("check", Task([h, &wrong] { wrong += h.data[0] != h.mark || h.data[h.words - 1] != h.mark; }));
        a.RecordStream(h.data, shared);
      } else {
        mine.Launch("check", Task([h, &wrong] { wrong += h.data[0] != h.mark || h.data[h.words - 1] != h.mark; }));
      }
      a.Free(h.data);
    }
    if (i % 100 == 99) a.EmptyCache();
    if (i % 50 == 49) a.Snapshot();
  }
  for (const Held& h : held) a.Free(h.data);
}

void HammerFromThreads(const AllocatorSettings& settings) {
  constexpr size_t kLimit = 96 * kMiB;
  auto backend = MakeHostBackend({1, kLimit, "test device"});
  Device device(*backend, 0, kLimit, settings);
  std::atomic<int> wrong{0};
  {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 9; ++i) streams.push_back(device.CreateStream());
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 8; ++i)
      threads.emplace_back([&, i] { Hammer(device, *streams[i], *streams[8], i + 1, wrong); });
    for (std::thread& thread : threads) thread.join();
    device.Synchronize();
  }
  CHECK(wrong == 0);
  device.allocator().EmptyCache();
  const AllocatorStats s = device.allocator().Stats();
  CHECK(s.allocated_bytes.all.current == 0);
  CHECK(s.active.all.current == 0);
  CHECK(s.inactive_split.all.current == 0);
  CHECK(s.reserved_bytes.all.current == 0);
  CHECK(s.segment.all.current == 0);
}

}  // namespace

TEST_CASE("eight threads share the allocator") { HammerFromThreads({}); }

TEST_CASE("eight threads share the allocator, with expandable segments") {
  HammerFromThreads(ParseAllocatorSettings("CONF", "expandable_segments:True"));
}

TEST_CASE("eight threads share the allocator, with garbage collection") {
  HammerFromThreads(ParseAllocatorSettings("CONF", "garbage_collection_threshold:0.3,max_split_size_mb:21"));
}

}  // namespace npu
