#include <doctest/doctest.h>

#include <cstdint>
#include <string>
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

std::string OutOfMemoryMessage(CachingAllocator& a, size_t bytes, Stream& stream) {
  try {
    a.Allocate(bytes, stream);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kOutOfMemory);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("out of memory reports request, usage and remedy, and the device stays usable") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  void* p = a.Allocate(40 * kMiB, t.stream());
  CHECK(OutOfMemoryMessage(a, 30 * kMiB, t.stream()) ==
        "NPU out of memory. Tried to allocate 30.00 MiB (NPU 0; 64.00 MiB total capacity; 40.00 MiB already allocated; "
        "40.00 MiB current active; 24.00 MiB free; 40.00 MiB reserved in total). Free tensors, or raise "
        "ORT_NPU_MEMORY_LIMIT if the machine has more memory. If reserved memory is much larger than allocated memory, "
        "set max_split_size_mb in PYTORCH_NPU_ALLOC_CONF to avoid fragmentation");
  CHECK(a.Stats().num_ooms == 1);
  CHECK(a.Stats().num_alloc_retries == 1);
  a.Free(p);
  a.Free(a.Allocate(60 * kMiB, t.stream()));
}

TEST_CASE("absurd sizes are out of memory, not an overflow") {
  TestDevice t;
  for (size_t bytes :
       {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 511, SIZE_MAX / 2 + 1, size_t{1} << 62, TestDevice::kDefaultLimit + 1}) {
    CAPTURE(bytes);
    CHECK(OutOfMemoryMessage(t.allocator(), bytes, t.stream()) != "");
  }
  CachingAllocator unlimited(*t.backend, 0, SIZE_MAX);
  CHECK(OutOfMemoryMessage(unlimited, SIZE_MAX, t.stream()) != "");
  CHECK(OutOfMemoryMessage(unlimited, SIZE_MAX / 2, t.stream()) != "");
}

TEST_CASE("cached memory is released before a request fails") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  for (int i = 0; i < 3; ++i) a.Free(a.Allocate(20 * kMiB, t.stream()));
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(a.Allocate(20 * kMiB, t.stream()));
  for (void* block : blocks) a.Free(block);
  CHECK(a.Stats().reserved_bytes.all.current == 60 * kMiB);
  void* large = a.Allocate(50 * kMiB, t.stream());
  CHECK(a.Stats().num_alloc_retries == 1);
  CHECK(a.Stats().num_ooms == 0);
  CHECK(a.Stats().reserved_bytes.all.current == 50 * kMiB);
  a.Free(large);
}

TEST_CASE("memory cached by another idle stream is used before a request fails") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  const auto other = t.device.CreateStream();
  // A segment of the other stream that stays partly in use, so that it cannot be released as a whole.
  void* keep = a.Allocate(11 * kMiB, *other);
  a.Free(a.Allocate(40 * kMiB, *other));
  void* part = a.Allocate(2 * kMiB, *other);
  bool ran = false;
  other->Launch("op", [&] { ran = true; });
  void* mine = a.Allocate(30 * kMiB, t.stream());
  CHECK(ran);  // the allocation waited for it
  for (void* p : {keep, part, mine}) a.Free(p);
}

TEST_CASE("a smaller segment is allocated when the limit excludes the usual size") {
  TestDevice t(7 * kMiB);
  CachingAllocator& a = t.allocator();
  void* p = a.Allocate(5 * kMiB, t.stream());  // would share 20 MiB
  CHECK(a.Stats().reserved_bytes.all.current == 6 * kMiB);
  void* small = a.Allocate(1000, t.stream());  // would share 2 MiB
  CHECK(small != nullptr);
  CHECK(OutOfMemoryMessage(a, 2 * kMiB, t.stream()) != "");
  a.Free(p);
  a.Free(small);
}

TEST_CASE("pending blocks are waited for before a request fails") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  const auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  void* p = a.Allocate(40 * kMiB, t.stream());
  other->Launch("reader", [&] { gate.Wait(); });
  a.RecordStream(p, *other);
  a.Free(p);
  t.stream().Launch("opens", [&] { gate.Open(); });
  a.Free(a.Allocate(50 * kMiB, t.stream()));
  CHECK(a.Stats().num_ooms == 0);
}

TEST_CASE("a stream's error is not consumed when the allocator waits for the stream") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  a.Free(a.Allocate(40 * kMiB, t.stream()));
  t.stream().Launch("bad", [] { throw std::runtime_error("no"); });
  a.EmptyCache();
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
}

TEST_CASE("devices share one machine's memory but not their limits") {
  const auto backend = MakeHostBackend({2, 32 * kMiB, "test device"});
  Device first(*backend, 0, 32 * kMiB), second(*backend, 1, 32 * kMiB);
  void* p = first.allocator().Allocate(30 * kMiB, first.default_stream());
  CHECK(OutOfMemoryMessage(first.allocator(), 30 * kMiB, first.default_stream()) != "");
  void* q = second.allocator().Allocate(30 * kMiB, second.default_stream());
  CHECK_THROWS_AS(second.allocator().CheckedFree(p), Error);
  first.allocator().Free(p);
  second.allocator().Free(q);
}

}  // namespace npu
