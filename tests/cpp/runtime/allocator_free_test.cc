// Freeing never throws, waits or leaks, regardless of concurrent work on the streams.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/test_device.h"
#include "tests/cpp/support/watched_backend.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;
using test::WatchedBackend;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLimit = 256 * kMiB;

bool TakesPart(const Stream&) { return true; }

// Allocates with malloc, and notes what is freed.
struct Plugged {
  explicit Plugged(CachingAllocator& a) {
    a.UsePluggable({[](size_t bytes, int, Stream&) { return std::malloc(bytes); },
                    [this](void* p, size_t bytes, int, Stream*) {
                      std::free(p);
                      freed += bytes;
                      if (throws) throw std::runtime_error("no");
                    }});
  }
  std::atomic<size_t> freed{0};
  std::atomic<bool> throws{false};
};

void LaunchFailing(Stream& stream) {
  stream.Launch("bad", Task([] { throw std::runtime_error("no"); }));
}

}  // namespace

TEST_CASE("freeing a pointer that is not a live block from a deleter is ignored") {
  TestDevice t;
  int local = 0;
  void* p = t.allocator().Allocate(1000, t.stream());
  static_assert(noexcept(std::declval<CachingAllocator&>().Free(nullptr)));
  t.allocator().Free(&local);
  t.allocator().Free(static_cast<char*>(p) + 64);
  CHECK(t.allocator().SizeOf(p) == 1024);
  t.allocator().Free(p);
  t.allocator().Free(p);
  CHECK(t.allocator().Stats().allocation.all.freed == 1);
}

TEST_CASE("a block whose event cannot be recorded at free is reclaimed later") {
  WatchedBackend backend(kLimit);
  Device device(backend, 0, kLimit);
  CachingAllocator& a = device.allocator();
  const auto one = device.CreateStream(), two = device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  for (Stream* s : {one.get(), two.get()}) s->Launch("reader", Task([&] { gate.Wait(); }));
  void* p = a.Allocate(15 * kMiB, device.default_stream());
  a.RecordStream(p, *one);
  a.RecordStream(p, *two);
  backend.failing_records = 3;
  a.Free(p);
  CHECK(a.Stats().allocated_bytes.all.current == 0);
  CHECK(a.Stats().active_bytes.all.current == 16 * kMiB);
  CHECK(a.Allocate(15 * kMiB, device.default_stream()) != p);
  gate.Open();
  one->Synchronize();
  two->Synchronize();
  CHECK(backend.failing_records == 0);
  CHECK(a.Stats().active_bytes.all.current == 16 * kMiB);  // of the second block
  CHECK(a.Allocate(15 * kMiB, device.default_stream()) == p);
}

TEST_CASE("a pluggable block whose free cannot be launched is freed later") {
  WatchedBackend backend(kLimit);
  Device device(backend, 0, kLimit);
  CachingAllocator& a = device.allocator();
  Plugged plugged(a);
  Gate gate;
  OpenAtExit open{gate};
  void* p = a.Allocate(1000, device.default_stream());
  device.default_stream().Launch("user", Task([&] { gate.Wait(); }));
  backend.failing_always = 1;
  a.Free(p);
  gate.Open();
  device.default_stream().Synchronize();
  CHECK(plugged.freed == 0);
  CHECK(a.Stats().reserved_bytes.all.current == 0);  // the query retries the free
  CHECK(plugged.freed == 1000);
}

TEST_CASE("pluggable blocks are freed after failed work, and an exception of the free function is reported") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  Plugged plugged(a);
  Gate gate;
  OpenAtExit open{gate};
  plugged.throws = true;
  void* idle = a.Allocate(1000, t.stream());
  a.Free(idle);
  CHECK(plugged.freed == 1000);
  void* p = a.Allocate(2000, t.stream());
  t.stream().Launch("user", Task([&] { gate.Wait(); }));
  LaunchFailing(t.stream());
  a.Free(p);
  CHECK(plugged.freed == 1000);
  gate.Open();
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  CHECK(plugged.freed == 3000);
  t.stream().Launch("fine", Task([] {}));
  t.stream().Synchronize();
  CHECK(a.Stats().allocation.all.current == 0);
  CHECK(a.Stats().segment.all.current == 0);
}

TEST_CASE("record_stream of a pluggable block covers work enqueued on that stream afterwards") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  Plugged plugged(a);
  const auto side = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  auto* p = static_cast<char*>(a.Allocate(1000, t.stream()));
  a.RecordStream(p, *side);
  side->Launch("later", Task([&, p] {
                 gate.Wait();
                 p[0] = 1;
               }));
  a.Free(p);
  t.stream().Launch("not held up", Task([] {}));
  t.stream().Synchronize();
  CHECK(plugged.freed == 0);
  gate.Open();
  side->Synchronize();
  CHECK(plugged.freed == 1000);
}

TEST_CASE("a pluggable allocator serves private pools, which hold their blocks until they are destroyed") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  Plugged plugged(a);
  const PoolId id{0, 21};
  a.RetainPool(id);
  a.BeginPool(id, TakesPart);
  void* p = a.Allocate(1024, t.stream());
  a.Free(p);
  CHECK(plugged.freed == 0);
  CHECK(a.Allocate(1024, t.stream()) == p);
  a.EndPool(id);
  a.Free(p);
  CHECK(plugged.freed == 0);
  a.ReleasePool(id);
  CHECK(plugged.freed == 1024);
}

TEST_CASE("an allocation checks a bounded number of pending blocks") {
  WatchedBackend backend(kLimit);
  Device device(backend, 0, kLimit);
  CachingAllocator& a = device.allocator();
  constexpr int kStreams = 40, kBlocks = 50;
  Gate gate;
  OpenAtExit open{gate};
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(device.CreateStream());
    streams.back()->Launch("reader", Task([&] { gate.Wait(); }));
  }
  std::vector<void*> blocks;
  for (int i = 0; i < kStreams * kBlocks; ++i) blocks.push_back(a.Allocate(512, device.default_stream()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    a.RecordStream(blocks[i], *streams[i % kStreams]);
    a.Free(blocks[i]);
  }
  a.Free(a.Allocate(512, device.default_stream()));
  backend.event_queries = 0;
  for (int i = 0; i < 10; ++i) a.Free(a.Allocate(512, device.default_stream()));
  CHECK(backend.event_queries <= 10 * 8);
  gate.Open();
  for (const auto& s : streams) s->Synchronize();
  backend.event_queries = 0;
  CHECK(a.Stats().active.all.current == 0);
  CHECK(backend.event_queries == kStreams * kBlocks);
}

TEST_CASE("a private pool is destroyed without waiting, its memory once its streams have passed") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  const auto side = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  a.Free(a.Allocate(30 * kMiB, *side));  // a cached block of a blocked stream, unrelated to the pool
  const PoolId id{0, 22};
  a.RetainPool(id);
  a.BeginPool(id, TakesPart);
  auto* used = static_cast<char*>(a.Allocate(12 * kMiB, *side));
  void* live = a.Allocate(14 * kMiB, t.stream());
  side->Launch("user", Task([&, used] {
                 gate.Wait();
                 used[0] = used[12 * kMiB - 1] = 1;  // faults if the memory was released
               }));
  a.Free(used);
  a.EndPool(id);
  a.ReleasePool(id);
  CHECK(a.PoolUseCount(id) == 0);
  CHECK(a.Stats().segment.all.current == 3);
  gate.Open();
  side->Synchronize();
  CHECK(a.Stats().segment.all.current == 2);
  a.Free(live);
  CHECK(a.Stats().segment.all.current == 1);
}

TEST_CASE("a pool and a stream can be destroyed while empty_cache waits for another stream") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  const auto blocked = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  a.Free(a.Allocate(15 * kMiB, *blocked));
  blocked->Launch("user", Task([&] { gate.Wait(); }));
  const PoolId id{0, 23};
  a.RetainPool(id);
  a.BeginPool(id, TakesPart);
  a.Free(a.Allocate(25 * kMiB, t.stream()));
  a.EndPool(id);
  auto going = t.device.CreateStream();
  void* kept = a.Allocate(35 * kMiB, *going);
  a.RecordStream(kept, *blocked);
  std::atomic<bool> emptied{false};
  std::thread emptying([&] {
    a.EmptyCache();
    emptied = true;
  });
  while (a.Stats().num_sync_all_streams == 0) std::this_thread::yield();
  going.reset();
  a.ReleasePool(id);
  a.Free(kept);
  CHECK_FALSE(emptied);
  gate.Open();
  emptying.join();
  a.EmptyCache();
  CHECK(a.Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("two requests that wait for the same cached memory both succeed") {
  TestDevice t(64 * kMiB);
  CachingAllocator& a = t.allocator();
  const auto owner = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  a.Free(a.Allocate(60 * kMiB, *owner));
  owner->Launch("user", Task([&] { gate.Wait(); }));
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      try {
        a.Allocate(25 * kMiB, t.stream());
      } catch (const Error&) {
        ++failed;
      }
    });
  while (a.Stats().num_sync_all_streams < 2) std::this_thread::yield();
  gate.Open();
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST_CASE("in an open private pool a block used by another stream is reclaimed when the pool closes") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  const auto side = t.device.CreateStream();
  const PoolId id{0, 24};
  a.RetainPool(id);
  a.BeginPool(id, TakesPart);
  void* p = a.Allocate(15 * kMiB, t.stream());
  a.RecordStream(p, *side);  // both streams are idle, as in a capture, which only records work
  a.Free(p);
  void* q = a.Allocate(15 * kMiB, t.stream());
  CHECK(q != p);
  CHECK(a.Stats().active.all.current == 2);
  a.EndPool(id);
  CHECK(a.Stats().active.all.current == 1);
  a.Free(q);
  a.ReleasePool(id);
  CHECK(a.Stats().segment.all.current == 0);
}

TEST_CASE("in a forked child frees do nothing and other calls report why they fail") {
  TestDevice t;
  CachingAllocator& a = t.allocator();
  t.stream().Launch("start", Task([] {}));
  t.stream().Synchronize();
  void* p = a.Allocate(1000, t.stream());
  const auto side = t.device.CreateStream();
  a.RecordStream(p, *side);
  // A thread that does not exist in the child holds the allocator's lock.
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> locked{false};
  a.BeginPool({0, 25}, [&](const Stream&) {
    locked = true;
    gate.Wait();
    return false;
  });
  std::thread holder([&] { a.Free(a.Allocate(1000, t.stream())); });
  while (!locked) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    a.Free(p);
    a.CheckedFree(p);
    a.EraseStream(p, *side);
    a.ReleaseStream(side->id());
    a.ReleasePool({0, 25});
    a.EndPool({0, 25});
    int refused = 0;
    const auto use = [&](auto&& f) {
      try {
        f();
      } catch (const Error& e) {
        refused += std::string(e.what()).find("fork") != std::string::npos;
      }
    };
    use([&] { a.Allocate(1000, t.stream()); });
    use([&] { a.RecordStream(p, t.stream()); });
    use([&] { a.EmptyCache(); });
    use([&] { a.Stats(); });
    use([&] { a.RetainPool({0, 26}); });
    _exit(refused == 5 && a.SizeOf(p) == 0 && a.LiveBlockAround(p) == nullptr ? 0 : 1);
  }
  gate.Open();
  holder.join();
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  a.EndPool({0, 25});
  CHECK(a.SizeOf(p) == 1024);
  a.Free(p);
}

}  // namespace npu
