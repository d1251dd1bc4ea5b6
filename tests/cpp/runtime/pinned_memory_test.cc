#include "ep/runtime/pinned_memory.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

constexpr size_t kMiB = size_t{1} << 20;

struct Pinned : TestDevice {
  explicit Pinned(size_t cache_limit = PinnedMemory::kCacheLimit) : memory(backend.get(), cache_limit) {}
  ~Pinned() { device.Synchronize(); }

  char* Allocate(size_t bytes) { return static_cast<char*>(memory.Allocate(bytes)); }

  PinnedMemory memory;
};

}  // namespace

TEST_CASE("freed pinned memory is reused, last freed first, by powers of two") {
  Pinned t;
  char* a = t.Allocate(1000);
  char* b = t.Allocate(1000);
  CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
  t.memory.Free(a);
  t.memory.Free(b);
  CHECK(t.Allocate(513) == b);
  CHECK(t.Allocate(1024) == a);
  char* other = t.Allocate(1025);
  CHECK(other != a);
  PinnedMemoryStats s = t.memory.Stats();
  CHECK(s.blocks.current == 3);
  CHECK(s.bytes.current == 4096);
  CHECK(s.active_blocks.allocated == 5);
  CHECK(s.alloc_time.count == 3);
  for (char* p : {a, b, other}) t.memory.Free(p);
  s = t.memory.Stats();
  CHECK(s.active_bytes.current == 0);
  CHECK(s.bytes.current == 4096);
  t.memory.EmptyCache();
  s = t.memory.Stats();
  CHECK(s.blocks.current == 0);
  CHECK(s.bytes.freed == 4096);
  CHECK(s.bytes.peak == 4096);
  CHECK(s.free_time.count == 3);
  t.memory.ResetPeakStats();
  t.memory.ResetAccumulatedStats();
  s = t.memory.Stats();
  CHECK(s.bytes.peak == 0);
  CHECK(s.bytes.allocated == 0);
  CHECK(s.free_time.total == 0);
}

TEST_CASE("the pinned cache is bounded: the oldest block is evicted, an oversized one is freed immediately") {
  Pinned t(4 * kMiB);
  char* small = t.Allocate(kMiB);
  char* large = t.Allocate(4 * kMiB);
  char* huge = t.Allocate(4 * kMiB + 1);
  CHECK(t.memory.Stats().bytes.current == static_cast<int64_t>(9 * kMiB + 1));  // the oversized block is not rounded up
  t.memory.Free(huge);
  CHECK(t.memory.Stats().bytes.current == static_cast<int64_t>(5 * kMiB));
  t.memory.Free(small);
  t.memory.Free(large);
  const PinnedMemoryStats s = t.memory.Stats();
  CHECK(s.bytes.current == static_cast<int64_t>(4 * kMiB));
  CHECK(t.Allocate(4 * kMiB) == large);
  t.memory.Free(large);
}

TEST_CASE("any address within pinned memory is found, and no other") {
  Pinned t;
  char* p = t.Allocate(4096);
  int elsewhere = 0;
  CHECK(t.memory.Contains(p));
  CHECK(t.memory.Contains(p + 4095));
  CHECK_FALSE(t.memory.Contains(p + 4096));
  CHECK_FALSE(t.memory.Contains(p - 1));
  CHECK_FALSE(t.memory.Contains(&elsewhere));
  CHECK_FALSE(t.memory.RecordUse(&elsewhere, t.stream()));
  t.memory.Free(&elsewhere);  // not a pinned block: ignored
  t.memory.Free(nullptr);
  t.memory.Free(p);
  CHECK_FALSE(t.memory.Contains(p));
  CHECK(t.memory.Allocate(0) == nullptr);
}

TEST_CASE("a failed pinned allocation is an error, after the cache is released") {
  Pinned t;
  t.memory.Free(t.memory.Allocate(4096));
  CHECK_THROWS_AS(t.memory.Allocate(SIZE_MAX), Error);
  CHECK(t.memory.Stats().blocks.current == 0);
  char* p = t.Allocate(4096);
  std::memset(p, 1, 4096);
  t.memory.Free(p);
}

TEST_CASE("pinned memory is reused after every stream that uses it has passed, without waiting") {
  Pinned t;
  const auto side = t.device.CreateStream();
  Gate first, second;
  OpenAtExit open_first{first}, open_second{second};
  char* p = t.Allocate(kMiB);
  t.stream().Launch("user", [&] { first.Wait(); });
  side->Launch("user", [&] { second.Wait(); });
  CHECK(t.memory.RecordUse(p + 17, t.stream()));
  CHECK(t.memory.RecordUse(p, *side));
  CHECK(t.memory.RecordUse(p, *side));
  t.memory.Free(p);
  CHECK_FALSE(t.memory.Contains(p));
  char* q = t.Allocate(kMiB);
  CHECK(q != p);
  CHECK(t.memory.Stats().active_blocks.current == 2);
  second.Open();
  side->Synchronize();
  char* r = t.Allocate(kMiB);
  CHECK(r != p);  // the other stream still uses it
  first.Open();
  t.stream().Synchronize();
  CHECK(t.memory.Stats().active_blocks.current == 2);
  CHECK(t.Allocate(kMiB) == p);
  for (char* block : {p, q, r}) t.memory.Free(block);
}

TEST_CASE("a later use on the same stream counts, and a blocked stream delays only its own blocks") {
  Pinned t;
  const auto side = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  char* held = t.Allocate(kMiB);
  char* other = t.Allocate(kMiB);
  CHECK(t.memory.RecordUse(held, *side));  // already passed
  side->Synchronize();
  side->Launch("user", [&] { gate.Wait(); });
  CHECK(t.memory.RecordUse(held, *side));
  CHECK(t.memory.RecordUse(other, t.stream()));
  t.memory.Free(held);
  t.memory.Free(other);
  t.stream().Synchronize();
  CHECK(t.Allocate(kMiB) == other);
  t.memory.Free(other);
  gate.Open();
}

TEST_CASE("a capture can reuse pinned memory; a graph keeps what it uses until it is destroyed") {
  Pinned t;
  const auto side = t.device.CreateStream();
  std::vector<char> to(2 * 1024);
  Graph graph;
  char* p = t.Allocate(1024);
  std::memset(p, 'p', 1024);
  graph.CaptureBegin(*side);
  side->Copy(to.data(), p, 1024, CopyKind::kHostToDevice);
  CHECK(t.memory.RecordUse(p, *side));
  t.memory.Free(p);
  char* q = t.Allocate(1024);
  CHECK(q != p);
  std::memset(q, 'q', 1024);
  side->Copy(to.data() + 1024, q, 1024, CopyKind::kHostToDevice);
  CHECK(t.memory.RecordUse(q, *side));
  CHECK(t.memory.RecordUse(q, *side));
  graph.CaptureEnd(*side);
  t.memory.Free(q);
  t.memory.EmptyCache();
  CHECK(t.memory.Stats().active_blocks.current == 2);
  for (int i = 0; i < 8; ++i) {
    char* r = t.Allocate(1024);
    CHECK(r != p);
    CHECK(r != q);
    std::memset(r, 'r', 1024);
  }
  graph.Replay(t.stream());
  t.stream().Synchronize();
  CHECK(to[0] == 'p');
  CHECK(to[2 * 1024 - 1] == 'q');
  graph.Reset();
  CHECK(t.memory.Stats().active_blocks.current == 8);
  char* r = t.Allocate(1024);
  CHECK((r == p || r == q));
}

TEST_CASE("an abandoned capture keeps no pinned memory") {
  Pinned t;
  const auto side = t.device.CreateStream();
  char* p = t.Allocate(1024);
  {
    Graph graph;
    graph.CaptureBegin(*side);
    side->Launch("user", [] {});
    CHECK(t.memory.RecordUse(p, *side));
    t.memory.Free(p);
  }
  CHECK(t.memory.Stats().active_blocks.current == 0);
  CHECK(t.Allocate(1024) == p);
  t.memory.Free(p);
}

TEST_CASE("pinned memory of a failed stream is reclaimed") {
  Pinned t;
  const auto side = t.device.CreateStream();
  char* p = t.Allocate(1024);
  side->Launch("broken", [] { Fail(ErrorCode::kDeviceError, "[broken] as it should be"); });
  CHECK(t.memory.RecordUse(p, *side));
  t.memory.Free(p);
  CHECK_THROWS_AS(side->Synchronize(), Error);
  CHECK(t.Allocate(1024) == p);
  t.memory.Free(p);
}

TEST_CASE("busy streams keep pinned memory recorded for their device") {
  TestDevice t;
  const auto side = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  PinnedMemory& memory = PinnedMemory::Instance();
  void* p = memory.Allocate(3 * kMiB);
  side->Launch("user", [&] { gate.Wait(); });
  t.device.RecordBusyStreams(p);
  memory.Free(p);
  void* q = memory.Allocate(3 * kMiB);
  CHECK(q != p);
  gate.Open();
  side->Synchronize();
  memory.Free(q);
  memory.EmptyCache();
}

TEST_CASE("pinned memory in a forked child: an allocation is an error, a free does nothing") {
  Pinned t;
  char* p = t.Allocate(1024);
  Gate gate;
  OpenAtExit open{gate};
  t.stream().Launch("user", [&] { gate.Wait(); });
  CHECK(t.memory.RecordUse(p, t.stream()));
  const pid_t child = fork();
  if (child == 0) {
    t.memory.Free(p);
    t.memory.EmptyCache();
    if (t.memory.Contains(p) || t.memory.Stats().blocks.current != 0) _exit(1);
    try {
      t.memory.Allocate(1024);
    } catch (const Error& e) {
      _exit(std::string(e.what()).find("fork") == std::string::npos ? 2 : 0);
    }
    _exit(3);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  gate.Open();
  t.memory.Free(p);
}

TEST_CASE("pinned memory from many threads") {
  Pinned t(kMiB);
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&t, k] {
      const auto stream = t.device.CreateStream();
      std::vector<char> to(4096);
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = size_t{64} << (i % 7);
        char* p = t.Allocate(bytes);
        std::memset(p, k + i, bytes);
        stream->Copy(to.data(), p, bytes, CopyKind::kHostToDevice);
        t.memory.RecordUse(p, *stream);
        t.memory.Free(p);
        if (i % 50 == 0) t.memory.EmptyCache();
        stream->Launch("check", [&to, value = static_cast<char>(k + i), bytes] {
          if (to[0] != value || to[bytes - 1] != value) Fail(ErrorCode::kDeviceError, "[check] overwritten in use");
        });
      }
      CHECK_NOTHROW(stream->Synchronize());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(t.memory.Stats().active_blocks.current == 0);
  CHECK(t.memory.Stats().bytes.current <= static_cast<int64_t>(kMiB));
}

}  // namespace npu
