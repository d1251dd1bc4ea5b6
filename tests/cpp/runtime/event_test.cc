#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/stream.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

TEST_CASE("an event that was never recorded is complete, and waiting for it does nothing") {
  TestDevice t;
  const Event event(*t.backend);
  CHECK(event.Query());
  CHECK(event.TimestampNs() == -1);
  event.Synchronize();
  t.stream().Wait(event);
  t.stream().Synchronize();
}

TEST_CASE("an event completes with the work before it, not earlier") {
  TestDevice t;
  Event event(*t.backend, /*timing=*/true);
  Gate gate;
  OpenAtExit open{gate};
  bool ran = false;
  t.stream().Launch("op", [&] {
    gate.Wait();
    ran = true;
  });
  event.Record(t.stream());
  CHECK_FALSE(event.Query());
  CHECK(event.TimestampNs() == -1);
  gate.Open();
  event.Synchronize();
  CHECK(ran);
  CHECK(event.Query());
  CHECK(event.TimestampNs() > 0);
}

TEST_CASE("a stream waits for another stream's event") {
  TestDevice t;
  const auto consumer = t.device.CreateStream();
  Event event(*t.backend);
  Gate gate;
  OpenAtExit open{gate};
  int value = 0, seen = -1;
  t.stream().Launch("produce", [&] {
    gate.Wait();
    value = 42;
  });
  event.Record(t.stream());
  consumer->Wait(event);
  consumer->Launch("consume", [&] { seen = value; });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_FALSE(consumer->Query());
  gate.Open();
  consumer->Synchronize();
  CHECK(seen == 42);
}

TEST_CASE("a wait refers to the latest record before it, not to later ones") {
  TestDevice t;
  const auto second = t.device.CreateStream(), consumer = t.device.CreateStream();
  Event event(*t.backend);
  Gate first_gate, second_gate;
  OpenAtExit open_first{first_gate}, open_second{second_gate};
  std::atomic<bool> consumed{false};

  t.stream().Launch("first", [&] { first_gate.Wait(); });
  event.Record(t.stream());
  consumer->Wait(event);
  consumer->Launch("consume", [&] { consumed = true; });
  event.Record(*second);  // completes immediately, and must not release the consumer
  second->Synchronize();
  CHECK(event.Query());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_FALSE(consumed);

  second->Launch("second", [&] { second_gate.Wait(); });
  event.Record(*second);  // does not complete, and must not block the consumer
  first_gate.Open();
  consumer->Synchronize();
  CHECK(consumed);
  CHECK_FALSE(event.Query());
  second_gate.Open();
}

TEST_CASE("an event may be destroyed while streams still wait for it") {
  TestDevice t;
  const auto consumer = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  int value = 0, seen = -1;
  {
    Event event(*t.backend);
    t.stream().Launch("produce", [&] {
      gate.Wait();
      value = 1;
    });
    event.Record(t.stream());
    consumer->Wait(event);
  }
  consumer->Launch("consume", [&] { seen = value; });
  gate.Open();
  consumer->Synchronize();
  CHECK(seen == 1);
}

TEST_CASE("a ping-pong of events keeps two streams in step") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Event event(*t.backend);
  int value = 0, wrong = 0;
  for (int i = 0; i < 2000; ++i) {
    Stream& here = i % 2 == 0 ? t.stream() : *other;
    Stream& there = i % 2 == 0 ? *other : t.stream();
    here.Launch("step", [&, i] { wrong += value++ != i; });
    event.Record(here);
    there.Wait(event);
  }
  t.device.Synchronize();
  CHECK(value == 2000);
  CHECK(wrong == 0);
}

TEST_CASE("an idle stream's events have completed, and behind a completed event the stream is idle") {
  TestDevice t;
  for (int i = 0; i < 500; ++i) {
    Event first(*t.backend), second(*t.backend);
    t.stream().Launch("op", [] {});
    first.Record(t.stream());
    while (!t.stream().Query()) {
    }
    CHECK(first.Query());
    second.Record(t.stream());
    second.Synchronize();
    CHECK(t.stream().Query());
  }
}

TEST_CASE("an event recorded on an unused stream has completed") {
  TestDevice t;
  Event event(*t.backend, /*timing=*/true);
  event.Record(t.stream());
  CHECK(event.Query());
  CHECK(event.TimestampNs() > 0);
}

TEST_CASE("elapsed time is device time and requires completed timing events") {
  TestDevice t;
  Event begin(*t.backend, /*timing=*/true), end(*t.backend, /*timing=*/true), untimed(*t.backend);
  CHECK_THROWS_AS(begin.ElapsedMs(end), Error);  // not recorded
  Gate gate;
  OpenAtExit open{gate};
  begin.Record(t.stream());
  t.stream().Launch("sleep", [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  t.stream().Launch("gate", [&] { gate.Wait(); });
  end.Record(t.stream());
  untimed.Record(t.stream());
  CHECK_THROWS_AS(begin.ElapsedMs(end), Error);  // not completed
  gate.Open();
  end.Synchronize();
  untimed.Synchronize();
  CHECK(begin.ElapsedMs(end) >= 5.0);
  CHECK(end.ElapsedMs(begin) <= -5.0);
  CHECK_THROWS_AS(begin.ElapsedMs(untimed), Error);
}

}  // namespace npu
