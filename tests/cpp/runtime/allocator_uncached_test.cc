// Without caching: the same counters, limits and order as with it; and look-up of blocks by address in both modes.
#include <doctest/doctest.h>

#include <stdexcept>
#include <stop_token>
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

constexpr size_t kMiB = size_t{1} << 20;

struct Uncached {
  explicit Uncached(size_t limit = 64 * kMiB)
      : backend(MakeHostBackend({1, limit, "test device"})), device(*backend, 0, limit, Settings()) {}
  static AllocatorSettings Settings() {
    AllocatorSettings settings;
    settings.caching = false;
    return settings;
  }
  void* Get(size_t bytes) { return a.Allocate(bytes, stream); }

  std::unique_ptr<Backend> backend;
  Device device;
  CachingAllocator& a = device.allocator();
  Stream& stream = device.default_stream();
};

}  // namespace

TEST_CASE("without caching the counters reflect the allocated blocks") {
  Uncached u;
  void* small = u.Get(1000);
  void* large = u.Get(5 * kMiB);
  AllocatorStats s = u.a.Stats();
  CHECK(s.allocation.all.current == 2);
  CHECK(s.segment.small_pool.current == 1);
  CHECK(s.segment.large_pool.current == 1);
  CHECK(s.requested_bytes.all.current == 1000 + 5 * kMiB);
  for (const PoolCounters* bytes : {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes}) {
    CHECK(bytes->small_pool.current == 1000);
    CHECK(bytes->large_pool.current == 5 * kMiB);
    CHECK(bytes->all.current == 1000 + 5 * kMiB);
  }
  CHECK(s.num_device_alloc == 2);
  u.a.Free(large);
  s = u.a.Stats();
  CHECK(s.allocated_bytes.all.current == 1000);
  CHECK(s.reserved_bytes.all.current == 1000);
  CHECK(s.reserved_bytes.all.peak == 1000 + 5 * kMiB);
  CHECK(s.allocated_bytes.all.freed == 5 * kMiB);
  CHECK(s.num_device_free == 1);
  u.a.ResetPeakStats();
  CHECK(u.a.Stats().reserved_bytes.all.peak == 1000);
  u.a.ResetAccumulatedStats();
  s = u.a.Stats();
  CHECK(s.allocated_bytes.all.freed == 0);
  CHECK(s.num_device_alloc == 0);
  CHECK(s.segment.all.current == 1);
  u.a.Free(small);
  s = u.a.Stats();
  CHECK(s.segment.all.current == 0);
  CHECK(s.inactive_split.all.allocated == 0);
}

TEST_CASE("without caching a snapshot and the history show every block") {
  Uncached u;
  u.a.RecordHistory(100, nullptr);
  void* p = u.Get(3 * kMiB);
  const std::vector<SegmentInfo> segments = u.a.Snapshot();
  REQUIRE(segments.size() == 1);
  CHECK(segments[0].total == 3 * kMiB);
  CHECK(segments[0].blocks.at(0).address == reinterpret_cast<uint64_t>(p));
  u.a.Free(p);
  std::vector<TraceEntry::Action> actions;
  for (const TraceEntry& e : u.a.History()) actions.push_back(e.action);
  using enum TraceEntry::Action;
  CHECK(actions == std::vector{kSegmentAlloc, kAlloc, kSnapshot, kFreeRequested, kFreeCompleted, kSegmentFree});
}

TEST_CASE("without caching the limit and the fraction are enforced") {
  Uncached u;
  u.a.SetMemoryFraction(0.5);
  void* p = u.Get(30 * kMiB);
  CHECK_THROWS_AS(u.Get(3 * kMiB), Error);
  CHECK_THROWS_AS(u.Get(33 * kMiB), Error);
  CHECK(u.a.Stats().num_ooms == 2);
  CHECK(u.a.Stats().num_oom_rejections == 2);
  u.a.Free(u.Get(2 * kMiB));
  CachingAllocator narrow(*u.backend, 0, 10 * kMiB, Uncached::Settings());
  CHECK_THROWS_AS(narrow.Allocate(11 * kMiB, u.stream), Error);
  narrow.Free(narrow.Allocate(10 * kMiB, u.stream));
  u.a.Free(p);
}

TEST_CASE("without caching memory is retained until every stream that uses it has passed") {
  Uncached u;
  const auto side = u.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  auto* p = static_cast<char*>(u.Get(20 * kMiB));
  auto* q = static_cast<char*>(u.Get(10 * kMiB));
  u.a.RecordStream(p, *side);
  side->Launch("after record_stream", Task([&, p] {
                 gate.Wait();
                 p[0] = p[20 * kMiB - 1] = 1;  // faults if the memory was released
               }));
  u.stream.Launch("user", Task([&, q] {
                    gate.Wait();
                    q[0] = q[10 * kMiB - 1] = 1;
                  }));
  u.a.EraseStream(q, u.stream);  // its own stream is never recorded
  u.a.Free(p);
  u.a.Free(q);
  CHECK(u.a.Stats().allocated_bytes.all.current == 0);
  CHECK(u.a.Stats().reserved_bytes.all.current == 30 * kMiB);
  gate.Open();
  side->Synchronize();
  u.stream.Synchronize();
  CHECK(u.a.Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("without caching memory freed after failed work is reclaimed") {
  Uncached u;
  for (int i = 0; i < 12; ++i) {
    void* p = u.Get(40 * kMiB);
    u.stream.Launch("bad", Task([] { throw std::runtime_error("no"); }));
    u.stream.Launch("skipped", Task([] {}));
    u.a.Free(p);
    CHECK_THROWS_WITH(u.stream.Synchronize(), "[bad] no");
  }
  CHECK(u.a.Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("without caching a request waits for pending frees before it fails") {
  Uncached u;
  Gate gate;
  OpenAtExit open{gate};
  void* p = u.Get(40 * kMiB);
  u.stream.Launch("user", Task([&] { gate.Wait(); }));
  u.a.Free(p);
  {
    const std::jthread opens([&](const std::stop_token& stop) {  // once the request waits
      while (!stop.stop_requested() && u.a.Stats().num_alloc_retries == 0) std::this_thread::yield();
      gate.Open();
    });
    u.a.Free(u.Get(40 * kMiB));
  }
  CHECK(u.a.Stats().num_ooms == 0);
  CHECK(u.a.Stats().num_alloc_retries == 1);
}

TEST_CASE("without caching a private pool still keeps its memory") {
  Uncached u;
  const PoolId id{0, 31};
  u.a.RetainPool(id);
  u.a.BeginPool(id, [](const Stream&) { return true; });
  void* temporary = u.Get(5 * kMiB);
  u.a.Free(temporary);
  CHECK(u.Get(5 * kMiB) == temporary);
  u.a.Free(temporary);
  u.a.EndPool(id);
  void* outside = u.Get(5 * kMiB);
  CHECK(outside != temporary);
  u.a.Free(outside);
  CHECK(u.a.Stats().reserved_bytes.all.current == 20 * kMiB);
  u.a.ReleasePool(id);
  CHECK(u.a.Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("blocks are found by any address inside, and lookups are not recorded") {
  for (const bool caching : {true, false}) {
    CAPTURE(caching);
    AllocatorSettings settings;
    settings.caching = caching;
    const auto backend = MakeHostBackend({1, 64 * kMiB, "test device"});
    Device device(*backend, 0, 64 * kMiB, settings);
    CachingAllocator& a = device.allocator();
    std::vector<char*> blocks;
    for (size_t bytes : {size_t{100}, size_t{2000}, 3 * kMiB, 12 * kMiB})
      blocks.push_back(static_cast<char*>(a.Allocate(bytes, device.default_stream())));
    a.RecordHistory(100, nullptr);
    for (char* block : blocks) {
      const size_t size = a.SizeOf(block);
      for (char* inside : {block, block + 1, block + size / 2, block + size - 1}) {
        CHECK(a.LiveBlockAround(inside) == block);
        BlockInfo info;
        CHECK(a.FindBlock(inside, info));
        CHECK(info.address == reinterpret_cast<uint64_t>(block));
        CHECK(info.state == BlockInfo::State::kAllocated);
      }
      CHECK(a.LiveBlockAround(block + size) != block);
      CHECK(a.LiveBlockAround(block - 1) != block);
      CHECK(a.SizeOf(block + 1) == 0);
    }
    CHECK(a.LiveBlockAround(nullptr) == nullptr);
    CHECK(a.LiveBlockAround(&settings) == nullptr);
    CHECK(a.History().empty());
    for (char* block : blocks) a.Free(block);
    for (char* block : blocks) CHECK(a.LiveBlockAround(block) == nullptr);
    BlockInfo info;
    CHECK(a.FindBlock(blocks[3] + 5, info) == caching);
    if (caching) CHECK(info.state == BlockInfo::State::kInactive);
  }
}

}  // namespace npu
