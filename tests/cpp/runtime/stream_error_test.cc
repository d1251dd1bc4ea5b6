#include <doctest/doctest.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/stream.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

using test::TestDevice;

TEST_CASE("a failed task surfaces once, at the next synchronize, under its operator's name") {
  TestDevice t;
  t.stream().Launch("npu_rms_norm", [] { throw std::runtime_error("expected 3, got 4"); });  // does not throw
  try {
    t.stream().Synchronize();
    FAIL("expected the error of the task");
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kDeviceError);
    CHECK(e.what() == std::string("[npu_rms_norm] expected 3, got 4"));
  }
  t.stream().Synchronize();  // does not throw: the error was reported
  bool ran = false;
  t.stream().Launch("op", [&] { ran = true; });
  t.stream().Synchronize();
  CHECK(ran);  // the stream is usable again
}

TEST_CASE("work after a failed task is skipped until the error is reported") {
  TestDevice t;
  int runs = 0;
  char target[4] = "abc";
  t.stream().Launch("first", [] { throw std::runtime_error("one"); });
  t.stream().Launch("second", [&] {
    ++runs;
    throw std::runtime_error("two");
  });
  t.stream().Memset(target, 0, 3);
  t.stream().Copy(target, "xyz", 3, CopyKind::kHostToDevice);
  t.stream().HostCallback([&] { ++runs; });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[first] one");
  CHECK(runs == 0);
  CHECK(target == std::string("abc"));
}

TEST_CASE("an operator's name is not repeated in an error") {
  TestDevice t;
  t.stream().Launch("Add", [] { Fail(ErrorCode::kInvalidArgument, "[Add] expected equal shapes"); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[Add] expected equal shapes");
}

TEST_CASE("any exception of a task is caught") {
  TestDevice t;
  t.stream().Launch("op", [] { throw std::bad_alloc(); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[op] out of host memory");
  t.stream().Launch("op", [] { throw 7; });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[op] unknown exception");
}

TEST_CASE("a failed stream still waits for events, so that order holds") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Event event(*t.backend), behind(*t.backend);
  test::Gate gate;
  test::OpenAtExit open{gate};
  other->Launch("gate", [&] { gate.Wait(); });
  event.Record(*other);
  t.stream().Launch("bad", [] { throw std::runtime_error("no"); });
  t.stream().Wait(event);
  behind.Record(t.stream());
  CHECK_FALSE(behind.Query());
  gate.Open();
  CHECK_THROWS_WITH(behind.Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
}

TEST_CASE("Device::Synchronize reports the error of any stream and clears all errors") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  other->Launch("bad", [] { throw std::runtime_error("no"); });
  CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no");
  t.device.Synchronize();
  other->Synchronize();
}

TEST_CASE("a task that synchronizes its own stream gets an error instead of a deadlock") {
  TestDevice t;
  t.stream().Launch("self", [&] { t.stream().Synchronize(); });
  CHECK_THROWS_WITH(t.stream().Synchronize(),
                    "[self] a task of a stream cannot synchronize that stream: it would wait for itself");
}

TEST_CASE("a stream destroyed with an error does not throw") {
  TestDevice t;
  const auto stream = t.device.CreateStream();
  stream->Launch("bad", [] { throw std::runtime_error("this line in the log is expected"); });
}

}  // namespace npu
