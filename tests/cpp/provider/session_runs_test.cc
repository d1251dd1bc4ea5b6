#include "ep/provider/session_runs.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cpp/support/test_device.h"

namespace npu::provider {
namespace {

struct Sessions : test::TestDevice {
  DeviceState state{device};
  std::shared_ptr<SessionRuns> outer = std::make_shared<SessionRuns>(state, 0);
  std::shared_ptr<SessionRuns> inner = std::make_shared<SessionRuns>(state, 0);
};

// Whether a thread of onnxruntime's own finds a single run in progress, to which its work then belongs.
bool OneRunInProgress(SessionRuns& session, Stream& stream) {
  bool one = false;
  std::thread([&] { one = session.Enter(stream); }).join();
  return one;
}

TEST_CASE_FIXTURE(Sessions, "a run inside a run of another session leaves the outer one to its thread") {
  Stream& stream = outer->TakeStream();
  test::Gate gate;
  const test::OpenAtExit open{gate};
  outer->Begin();
  inner->Begin();
  inner->End();
  CHECK(outer->Enter(stream));
  stream.Launch("blocked", [&] { gate.Wait(); });
  std::thread opener([&] { gate.Open(); });
  outer->Settle();
  CHECK(stream.Query());
  opener.join();
  outer->End();
  outer->Begin();
  CHECK(OneRunInProgress(*outer, stream));
  outer->End();
}

TEST_CASE_FIXTURE(Sessions, "a session that runs inside its own run ends both") {
  Stream& stream = outer->TakeStream();
  outer->Begin();
  outer->Begin();
  outer->End();
  CHECK(outer->Enter(stream));
  outer->End();
  outer->Begin();
  CHECK(OneRunInProgress(*outer, stream));
  outer->End();
}

TEST_CASE_FIXTURE(Sessions, "a session that is gone without an end leaves the outer run to its thread") {
  Stream& stream = outer->TakeStream();
  outer->Begin();
  inner->Begin();
  inner.reset();
  CHECK(outer->Enter(stream));
  outer->End();
  outer->Begin();
  CHECK(OneRunInProgress(*outer, stream));
  outer->End();
}

TEST_CASE_FIXTURE(Sessions, "a copy on a thread of onnxruntime's own waits for the runs that it may work for") {
  Stream& stream = outer->TakeStream();
  test::Gate gate;
  const test::OpenAtExit open{gate};
  bool done = false;
  outer->Begin();
  std::thread([&] {
    CHECK(SessionRuns::EnterCurrent(stream));  // before any kernel has entered: of no session that is known
    CHECK(outer->Enter(stream));
    stream.Launch("blocked", [&] {
      gate.Wait();
      done = true;
    });
  }).join();
  std::thread([&] {
    std::thread opener([&] { gate.Open(); });
    SessionRuns::SettleCurrent(device);
    CHECK(done);
    opener.join();
    CHECK(SessionRuns::EnterCurrent(stream));
  }).join();
  outer->End();
}

TEST_CASE_FIXTURE(Sessions, "a run's work on a stream comes after its earlier work on other streams") {
  Stream &main = outer->TakeStream(), &body = outer->TakeStream();
  test::Gate gate;
  const test::OpenAtExit open{gate};
  std::vector<int> order;
  outer->Begin();
  CHECK(outer->Enter(main));
  main.Launch("blocked", [&] {
    gate.Wait();
    order.push_back(1);
  });
  CHECK(outer->Enter(body));
  body.Launch("in a body", test::Append(order, 2));
  CHECK(outer->Enter(main));
  main.Launch("behind it", test::Append(order, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time for work that waits for nothing
  CHECK_FALSE(body.Query());
  gate.Open();
  outer->Settle();
  outer->End();
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE_FIXTURE(Sessions, "such a copy is waited for while several runs are in progress") {
  Stream& stream = outer->TakeStream();
  outer->Begin();
  std::thread other([&] {
    outer->Begin();
    std::thread([&] {
      CHECK_FALSE(outer->Enter(stream));
      CHECK_FALSE(SessionRuns::EnterCurrent(stream));
    }).join();
    outer->End();
  });
  other.join();
  outer->End();
}

}  // namespace
}  // namespace npu::provider
