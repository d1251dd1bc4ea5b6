#include "ep/runtime/current.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "ep/runtime/error.h"

namespace npu {

TEST_CASE("the default stream is current until a thread sets another, for that thread only") {
  Device& device = Runtime::Instance().device(0);
  CHECK(&CurrentStream(0) == &device.default_stream());
  Stream& pooled = PooledStream(0, 0);
  SetCurrentStream(pooled);
  CHECK(&CurrentStream(0) == &pooled);
  std::thread([&] { CHECK(&CurrentStream(0) == &device.default_stream()); }).join();
  SetCurrentStream(device.default_stream());
  CHECK(&CurrentStream(0) == &device.default_stream());
}

TEST_CASE("a device that does not exist never becomes current") {
  CHECK(CurrentDevice() == 0);
  CHECK_THROWS_AS(SetCurrentDevice(Runtime::Instance().device_count()), Error);
  CHECK_THROWS_AS(SetCurrentDevice(-1), Error);
  CHECK_THROWS_AS(CurrentStream(-1), Error);
  CHECK(CurrentDevice() == 0);
}

TEST_CASE("the pool returns distinct streams, then reuses them") {
  std::set<Stream*> first, second;
  for (int i = 0; i < kStreamsPerPool; ++i) first.insert(&PooledStream(0, 1));
  for (int i = 0; i < kStreamsPerPool; ++i) second.insert(&PooledStream(0, 1));
  CHECK(first.size() == kStreamsPerPool);
  CHECK(second == first);
}

TEST_CASE("a launch on a sync launch stream returns when its work is done; its error waits for the synchronize") {
  Stream& stream = PooledSyncLaunchStream(0);
  std::atomic<bool> ran{false};
  stream.Launch("set", Task([&] { ran = true; }));
  CHECK(ran);
  stream.Launch("fail", Task([] { throw std::runtime_error("no"); }));
  CHECK_THROWS_WITH(stream.Query(), "[fail] no");
  stream.Synchronize();  // the error was already reported
}

TEST_CASE("a live stream is found by its address") {
  Device& device = Runtime::Instance().device(0);
  CHECK(device.FindStream(&device.default_stream()) == &device.default_stream());
  int local = 0;
  CHECK(device.FindStream(&local) == nullptr);
}

TEST_CASE("a live stream is found by its id, a destroyed one is not") {
  Device& device = Runtime::Instance().device(0);
  auto stream = device.CreateStream();
  const uint64_t id = stream->id();
  CHECK(device.FindStream(id) == stream.get());
  stream.reset();
  CHECK(device.FindStream(id) == nullptr);
}

}  // namespace npu
