#include "ep/runtime/allocator.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/device_bytes.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::TestDevice;

constexpr size_t kKiB = size_t{1} << 10;
constexpr size_t kMiB = size_t{1} << 20;

// Invariants whenever nothing is allocated and no event is pending.
void CheckIdle(const AllocatorStats& s) {
  for (const PoolCounters* counters : {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes,
                                       &s.requested_bytes, &s.inactive_split, &s.inactive_split_bytes}) {
    CHECK(counters->all.current == 0);
    CHECK(counters->small_pool.current == 0);
    CHECK(counters->large_pool.current == 0);
    CHECK(counters->all.allocated == counters->all.freed);
  }
}

}  // namespace

TEST_CASE("zero bytes give null, and freeing null does nothing") {
  TestDevice t;
  CHECK(t.allocator().Allocate(0, t.stream()) == nullptr);
  t.allocator().Free(nullptr);
  t.allocator().RecordStream(nullptr, t.stream());
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("blocks are aligned, apart from each other, and writable to their ends") {
  TestDevice t;
  std::set<std::pair<char*, char*>> taken;
  for (size_t bytes : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, kKiB * 100, kMiB, kMiB + 1, kMiB * 9,
                       kMiB * 10, kMiB * 11 + 3}) {
    auto* p = static_cast<char*>(t.allocator().Allocate(bytes, t.stream()));
    CHECK(reinterpret_cast<uintptr_t>(p) % CachingAllocator::kAlignment == 0);
    test::WriteByte(*t.backend, p, 1);
    test::WriteByte(*t.backend, p + bytes - 1, 2);
    taken.emplace(p, p + bytes);
  }
  char* last = nullptr;
  for (const auto& [begin, end] : taken) {
    CHECK(begin >= last);
    last = end;
  }
  for (const auto& [begin, end] : taken) t.allocator().Free(begin);
  CheckIdle(t.allocator().Stats());
}

TEST_CASE("small requests share 2 MiB segments, medium ones 20 MiB segments, large ones have their own") {
  TestDevice t;
  const auto reserved = [&] { return t.allocator().Stats().reserved_bytes; };
  t.allocator().Allocate(1, t.stream());
  t.allocator().Allocate(kMiB, t.stream());
  CHECK(reserved().small_pool.current == 2 * kMiB);
  CHECK(reserved().large_pool.current == 0);
  t.allocator().Allocate(kMiB + 1, t.stream());
  t.allocator().Allocate(9 * kMiB, t.stream());
  CHECK(reserved().large_pool.current == 20 * kMiB);
  t.allocator().Allocate(31 * kMiB + 1, t.stream());
  CHECK(reserved().large_pool.current == 20 * kMiB + 32 * kMiB);
  CHECK(t.allocator().Stats().segment.all.current == 3);
}

TEST_CASE("a freed block is reused by its stream, best fit first") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  std::vector<void*> blocks;
  for (size_t kib : {64, 1, 16, 1, 32, 1}) blocks.push_back(a.Allocate(kib * kKiB, t.stream()));
  for (size_t i : {0, 2, 4}) a.Free(blocks[i]);
  CHECK(a.Allocate(20 * kKiB, t.stream()) == blocks[4]);  // out of 64, 16 and 32
  CHECK(a.Allocate(16 * kKiB, t.stream()) == blocks[2]);
  CHECK(a.Allocate(64 * kKiB, t.stream()) == blocks[0]);
}

TEST_CASE("neighbouring blocks merge, in any order of frees") {
  for (const std::vector<size_t>& order :
       std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}}) {
    TestDevice t;
    CachingAllocator& a = t.allocator();
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(a.Allocate(512 * kKiB, t.stream()));
    CHECK(a.Stats().segment.all.current == 1);
    for (size_t i : order) a.Free(blocks[i]);
    CheckIdle(a.Stats());
    a.EmptyCache();  // only an unfragmented segment can be released
    CHECK(a.Stats().reserved_bytes.all.current == 0);
    CHECK(a.Stats().segment.all.current == 0);
  }
}

TEST_CASE("a fragmented segment can be used whole again after frees") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  std::vector<void*> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(a.Allocate(512, t.stream()));
  CHECK(a.Stats().reserved_bytes.all.current == 2 * kMiB);
  for (size_t i = 0; i < blocks.size(); i += 2) a.Free(blocks[i]);
  CHECK(a.Stats().inactive_split.all.current == 2048);
  CHECK(a.Stats().inactive_split_bytes.all.current == kMiB);
  void* large = a.Allocate(kKiB, t.stream());  // larger than any fragment
  CHECK(a.Stats().segment.all.current == 2);
  for (size_t i = 1; i < blocks.size(); i += 2) a.Free(blocks[i]);
  a.Free(large);
  CheckIdle(a.Stats());
  CHECK(a.Allocate(kMiB, t.stream()) != nullptr);
  CHECK(a.Allocate(kMiB, t.stream()) != nullptr);
  CHECK(a.Stats().segment.all.current == 2);
}

TEST_CASE("empty_cache keeps blocks in use") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  auto* keep = static_cast<char*>(a.Allocate(3 * kMiB, t.stream()));
  test::WriteByte(*t.backend, keep, 7);
  a.Free(a.Allocate(50 * kMiB, t.stream()));
  a.Free(a.Allocate(3 * kMiB, t.stream()));
  CHECK(a.Stats().reserved_bytes.all.current == 70 * kMiB);
  a.EmptyCache();
  CHECK(a.Stats().reserved_bytes.all.current == 20 * kMiB);
  CHECK(test::ReadByte(*t.backend, keep) == 7);
  a.Free(keep);
  a.EmptyCache();
  CHECK(a.Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("a pointer that is not a live allocation is refused") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  auto* p = static_cast<char*>(a.Allocate(1000, t.stream()));
  int local = 0;
  CHECK_THROWS_AS(a.CheckedFree(&local), Error);
  CHECK_THROWS_AS(a.CheckedFree(p + 64), Error);
  CHECK_THROWS_AS(a.RecordStream(&local, t.stream()), Error);
  a.Free(p);
  CHECK_THROWS_AS(a.CheckedFree(p), Error);
  CHECK_THROWS_AS(a.RecordStream(p, t.stream()), Error);
  CheckIdle(a.Stats());
}

TEST_CASE("statistics count requests, blocks and segments as torch.npu.memory_stats does") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  void* small = a.Allocate(1000, t.stream());
  void* large = a.Allocate(5 * kMiB, t.stream());
  AllocatorStats s = a.Stats();
  CHECK(s.allocation.all.current == 2);
  CHECK(s.allocation.small_pool.current == 1);
  CHECK(s.allocation.large_pool.current == 1);
  CHECK(s.requested_bytes.small_pool.current == 1000);
  CHECK(s.allocated_bytes.small_pool.current == 1024);
  CHECK(s.allocated_bytes.all.current == 1024 + 5 * kMiB);
  CHECK(s.active_bytes.all.current == s.allocated_bytes.all.current);
  CHECK(s.inactive_split_bytes.all.current == 22 * kMiB - s.active_bytes.all.current);
  CHECK(s.num_alloc_retries == 0);
  CHECK(s.num_ooms == 0);
  a.Free(large);
  a.Free(small);
  s = a.Stats();
  CHECK(s.allocated_bytes.all.current == 0);
  CHECK(s.allocated_bytes.all.peak == 1024 + 5 * kMiB);
  CHECK(s.allocated_bytes.all.freed == 1024 + 5 * kMiB);
  CHECK(s.reserved_bytes.all.current == 22 * kMiB);
  a.ResetPeakStats();
  CHECK(a.Stats().allocated_bytes.all.peak == 0);
  CHECK(a.Stats().reserved_bytes.all.peak == 22 * kMiB);
  CheckIdle(a.Stats());
}

}  // namespace npu
