// PYTORCH_NPU_ALLOC_CONF, private pools, history and pluggable allocators.
#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/device_bytes.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

constexpr size_t kMiB = size_t{1} << 20;

struct Configured {
  explicit Configured(const std::string& conf, size_t limit = TestDevice::kDefaultLimit)
      : backend(MakeHostBackend({1, limit, "test device"})),
        device(*backend, 0, limit, ParseAllocatorSettings("CONF", conf)),
        a(device.allocator()) {}
  void* Get(size_t bytes) { return a.Allocate(bytes, device.default_stream()); }
  int64_t reserved() { return a.Stats().reserved_bytes.all.current; }

  std::unique_ptr<Backend> backend;
  Device device;
  CachingAllocator& a;
};

bool Fails(Configured& c, size_t bytes) {
  try {
    c.Get(bytes);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kOutOfMemory);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("blocks above max_split_size are not split, and are counted") {
  Configured c("max_split_size_mb:64");
  void* big = c.Get(100 * kMiB);
  CHECK(c.a.Stats().oversize_allocations.current == 1);
  CHECK(c.a.Stats().oversize_segments.current == 1);
  c.a.Free(big);
  CHECK(c.a.Stats().oversize_allocations.current == 0);
  void* small = c.Get(30 * kMiB);  // must not split the free block of 100
  CHECK(c.reserved() == 130 * kMiB);
  CHECK(c.Get(90 * kMiB) == big);  // differs by less than max_non_split_rounding
  c.a.Free(small);
  CHECK(c.Get(20 * kMiB) == small);  // below the limit blocks are split
  c.a.EmptyCache();
  CHECK(c.a.Stats().oversize_segments.current == 1);
}

TEST_CASE("garbage collection frees the oldest cached blocks before allocating from the device") {
  Configured c("garbage_collection_threshold:0.5", 200 * kMiB);
  void* first = c.Get(30 * kMiB);
  void* second = c.Get(32 * kMiB);
  c.a.Free(first);
  c.a.Free(second);
  void* third = c.Get(60 * kMiB);  // 122 MiB would be above 100: one segment is released
  CHECK(c.reserved() == 92 * kMiB);
  CHECK(c.Get(32 * kMiB) == second);
  CHECK(c.a.Stats().num_alloc_retries == 0);
  c.a.Free(third);
}

TEST_CASE("a memory fraction refuses requests that the device could still serve") {
  Configured c("per_process_memory_fraction:0.5", 200 * kMiB);
  CHECK(Fails(c, 101 * kMiB));
  CHECK(c.a.Stats().num_oom_rejections == 1);
  void* half = c.Get(100 * kMiB);
  CHECK(Fails(c, 2 * kMiB));
  c.a.SetMemoryFraction(1.0);
  c.a.Free(c.Get(50 * kMiB));
  c.a.Free(half);
  CHECK_THROWS_AS(c.a.SetMemoryFraction(1.5), Error);
  CHECK_THROWS_AS(c.a.SetMemoryFraction(-0.1), Error);
}

TEST_CASE("expandable segments grow in place and release their free tail") {
  Configured c("expandable_segments:True");
  std::vector<char*> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(static_cast<char*>(c.Get(30 * kMiB)));
    test::WriteByte(*c.backend, blocks.back(), static_cast<char>(i));
    test::WriteByte(*c.backend, blocks.back() + 30 * kMiB - 1, static_cast<char>(i));
  }
  CHECK(c.a.Stats().segment.all.current == 1);
  CHECK(c.reserved() == 180 * kMiB);
  for (size_t i = 1; i < blocks.size(); ++i) CHECK(blocks[i] == blocks[i - 1] + 30 * kMiB);
  CHECK(c.a.Snapshot().front().expandable);
  for (size_t i = 2; i < blocks.size(); ++i) c.a.Free(blocks[i]);
  void* joined = c.Get(110 * kMiB);  // larger than any free block of a fixed segment
  CHECK(joined == blocks[2]);
  c.a.Free(joined);
  c.a.TrimExpandableSegments();
  CHECK(c.reserved() == 60 * kMiB);
  CHECK(test::ReadByte(*c.backend, blocks[1]) == 1);
  CHECK(c.a.Stats().num_device_free == 1);
  c.a.Free(c.Get(1000));  // small blocks have a separate segment
  CHECK(c.a.Stats().segment.all.current == 2);
  c.a.Free(blocks[0]);
  c.a.Free(blocks[1]);
  c.a.EmptyCache();
  CHECK(c.reserved() == 0);
  CHECK(c.a.Stats().segment.all.current == 0);
  CHECK(Fails(c, TestDevice::kDefaultLimit + 1));
}

TEST_CASE("trimming without expandable segments names the missing setting") {
  TestDevice t;
  CHECK_THROWS_WITH_AS(t.allocator().TrimExpandableSegments(), doctest::Contains("expandable_segments"), Error);
}

TEST_CASE("a private pool frees its memory with its last user and leaves other caches") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  a.Free(a.Allocate(5 * kMiB, t.stream()));
  const PoolId used{0, 8}, unused{0, 9};
  for (const PoolId id : {used, unused}) {
    a.RetainPool(id);
    a.BeginPool(id, [](const Stream&) { return true; });
    a.Free(a.Allocate(5 * kMiB, t.stream()));
    a.EndPool(id);
  }
  CHECK(a.Stats().segment.all.current == 3);
  a.ReleasePool(unused);
  CHECK(a.Stats().segment.all.current == 2);
  for (const SegmentInfo& s : a.Snapshot()) CHECK(s.pool != unused);
  a.ReleasePool(used);
  CHECK(a.Stats().segment.all.current == 1);
}

TEST_CASE("a private pool's memory is separate while the pool is retained") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  const PoolId id{0, 7};
  a.RetainPool(id);
  a.BeginPool(id, [me = std::this_thread::get_id()](const Stream&) { return std::this_thread::get_id() == me; });
  CHECK(a.PoolUseCount(id) == 2);
  void* mine = a.Allocate(5 * kMiB, t.stream());
  void* others = nullptr;
  std::thread([&] { others = a.Allocate(5 * kMiB, t.stream()); }).join();
  a.EndPool(id);
  CHECK(a.Stats().segment.all.current == 2);
  a.Free(mine);
  void* outside = a.Allocate(5 * kMiB, t.stream());
  CHECK(outside != mine);
  int in_pool = 0;
  for (const SegmentInfo& s : a.Snapshot()) in_pool += s.pool == id;
  CHECK(in_pool == 1);
  a.EmptyCache();
  CHECK(a.Stats().segment.all.current == 2);  // still retained
  a.ReleasePool(id);
  a.EmptyCache();
  CHECK(a.Stats().segment.all.current == 1);
  CHECK(a.PoolUseCount(id) == 0);
  CHECK_THROWS_AS(a.ReleasePool(id), Error);
  CHECK_THROWS_AS(a.EndPool(id), Error);
  CHECK_THROWS_AS(a.RetainPool({}), Error);
  a.Free(others);
  a.Free(outside);
}

TEST_CASE("a snapshot is consistent and reports the state of each block") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  void* live = a.Allocate(1000, t.stream());
  void* shared = a.Allocate(3 * kMiB, t.stream());
  auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  other->Launch("wait", Task([&] { gate.Wait(); }));
  a.RecordStream(shared, *other);
  a.Free(shared);
  const AllocatorStats stats = a.Stats();
  size_t total = 0, allocated = 0, active = 0;
  std::multiset<BlockInfo::State> states;
  for (const SegmentInfo& s : a.Snapshot()) {
    total += s.total;
    allocated += s.allocated;
    active += s.active;
    size_t in_blocks = 0;
    for (const BlockInfo& b : s.blocks) {
      in_blocks += b.size;
      states.insert(b.state);
    }
    CHECK(in_blocks == s.total);
  }
  CHECK(total == static_cast<size_t>(stats.reserved_bytes.all.current));
  CHECK(allocated == static_cast<size_t>(stats.allocated_bytes.all.current));
  CHECK(active == static_cast<size_t>(stats.active_bytes.all.current));
  CHECK(states.count(BlockInfo::State::kPendingFree) == 1);
  CHECK(states.count(BlockInfo::State::kAllocated) == 1);
  BlockInfo block;
  CHECK(a.FindBlock(static_cast<char*>(live) + 999, block));
  CHECK(block.requested == 1000);
  CHECK_FALSE(a.FindBlock(&stats, block));
  gate.Open();
  other->Synchronize();
  a.Free(live);
}

TEST_CASE("the history keeps the latest events with their frames") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  a.RecordHistory(4, [] { return Frames(new std::vector<Frame>{{"model.py", 12, "forward"}}); });
  a.Free(a.Allocate(1000, t.stream()));
  std::vector<TraceEntry> events = a.History();
  REQUIRE(events.size() == 4);
  CHECK(events[0].action == TraceEntry::Action::kSegmentAlloc);
  CHECK(events[1].action == TraceEntry::Action::kAlloc);
  CHECK(events[1].frames->front().function == "forward");
  CHECK(events[3].action == TraceEntry::Action::kFreeCompleted);
  void* kept = a.Allocate(2000, t.stream());
  events = a.History();
  CHECK(events.size() == 4);
  CHECK(events[3].size == 2000);
  CHECK(a.Snapshot().front().blocks.front().frames != nullptr);
  CHECK_THROWS_AS(a.Allocate(SIZE_MAX / 4, t.stream()), Error);
  CHECK(a.History().back().action == TraceEntry::Action::kOutOfMemory);
  a.RecordHistory(0, nullptr);
  a.Free(kept);
  CHECK(a.History().empty());
}

TEST_CASE("resetting statistics clears totals and keeps current values and settings") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  void* p = a.Allocate(3 * kMiB, t.stream());
  a.EmptyCache();
  CHECK(a.Stats().num_sync_all_streams == 1);
  CHECK(a.Stats().num_device_alloc == 1);
  a.ResetAccumulatedStats();
  const AllocatorStats s = a.Stats();
  CHECK(s.allocated_bytes.all.allocated == 0);
  CHECK(s.allocated_bytes.all.current == 3 * kMiB);
  CHECK(s.allocated_bytes.all.peak == 3 * kMiB);
  CHECK(s.num_device_alloc == 0);
  CHECK(s.num_sync_all_streams == 0);
  a.Free(p);
}

TEST_CASE("a pluggable allocator serves every request, frees in stream order, and must be set first") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  std::vector<std::string> calls;
  a.UsePluggable({[&](size_t bytes, int device, Stream&) {
                    calls.push_back(Concat("alloc ", bytes, " on ", device));
                    return std::malloc(bytes);
                  },
                  [&](void* p, size_t bytes, int, Stream*) {
                    calls.push_back(Concat("free ", bytes));
                    std::free(p);
                  }});
  auto* p = static_cast<char*>(a.Allocate(1000, t.stream()));
  Gate gate;
  {
    OpenAtExit open{gate};
    t.stream().Launch("write", Task([&, p] {
                        gate.Wait();
                        p[999] = 1;
                      }));
    a.Free(p);
    CHECK(calls.size() == 1);  // the write is still pending
  }
  t.stream().Synchronize();
  CHECK(calls == std::vector<std::string>{"alloc 1000 on 0", "free 1000"});
  CHECK_THROWS_AS(a.CheckedFree(p), Error);
  CHECK(a.Stats().segment.all.current == 0);
  CHECK_THROWS_AS(
      a.UsePluggable({[](size_t, int, Stream&) -> void* { return nullptr; }, [](void*, size_t, int, Stream*) {}}),
      Error);
}

TEST_CASE("without caching every freed block returns to the device") {
  AllocatorSettings settings;
  settings.caching = false;
  auto backend = MakeHostBackend({1, 64 * kMiB, "test device"});
  Device device(*backend, 0, 64 * kMiB, settings);
  for (int i = 0; i < 10; ++i) {
    void* p = device.allocator().Allocate(40 * kMiB, device.default_stream());
    device.allocator().Free(p);
    device.default_stream().Synchronize();
  }
  CHECK_THROWS_AS(device.allocator().Allocate(65 * kMiB, device.default_stream()), Error);
}

TEST_CASE("a stopped device drops its queue, refuses work, and works again after a restart") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<int> ran{0};
  t.stream().Launch("running", Task([&] {
                      gate.Wait();
                      ++ran;
                    }));
  t.stream().Launch("queued", Task([&] { ++ran; }));
  t.device.Stop();
  CHECK_THROWS_WITH_AS(t.stream().Launch("later", Task([] {})), doctest::Contains("FORCE STOP"), Error);
  gate.Open();
  CHECK_THROWS_WITH_AS(t.stream().Synchronize(), doctest::Contains("FORCE STOP"), Error);
  CHECK(ran <= 1);
  t.device.Restart();
  t.stream().Launch("again", Task([&] { ran = 10; }));
  t.stream().Synchronize();
  CHECK(ran == 10);
}

}  // namespace npu
