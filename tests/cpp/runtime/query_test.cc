// Queries, and waits for a device, while other threads launch.
#include <doctest/doctest.h>

#include <chrono>
#include <future>

#include "ep/runtime/device.h"
#include "ep/runtime/stream.h"
#include "tests/cpp/support/test_device.h"
#include "tests/cpp/support/watched_backend.h"

namespace npu {
namespace {

constexpr size_t kLimit = size_t{64} << 20;
constexpr std::chrono::seconds kPatience{20};

// A stream that is found idle and is busy when the caller looks again: another thread launched in between.
struct BusyAfterQuery {
  BusyAfterQuery() {
    stream->Launch("first", [] {});
    stream->Synchronize();
    backend.after_query = [this](BackendStream* queried, bool idle) {
      if (queried != stream->handle() || !idle || launched) return;
      launched = true;
      backend.Launch(queried, "second", [this] { gate.Wait(); }, 0);
      busy.set_value();
    };
  }
  ~BusyAfterQuery() { backend.after_query = nullptr; }

  test::WatchedBackend backend{kLimit};
  Device device{backend, 0, kLimit};
  test::Gate gate;
  bool launched = false;
  std::promise<void> busy;
  std::unique_ptr<Stream> stream = device.CreateStream();
};

}  // namespace

TEST_CASE("a query does not wait for work of another thread") {
  BusyAfterQuery t;
  test::OpenAtExit open{t.gate};
  auto queried = std::async(std::launch::async, [&] { return t.stream->Query(); });
  const bool returned = queried.wait_for(kPatience) == std::future_status::ready;
  t.gate.Open();
  CHECK(returned);
  CHECK(queried.get());
  CHECK(t.launched);
}

TEST_CASE("streams can be created while a thread waits for their device and another launches") {
  BusyAfterQuery t;
  test::OpenAtExit open{t.gate};
  auto waited = std::async(std::launch::async, [&] { t.device.Synchronize(); });
  t.busy.get_future().wait();
  auto created = std::async(std::launch::async, [&] { return t.device.CreateStream(); });
  const bool returned = created.wait_for(kPatience) == std::future_status::ready;
  t.gate.Open();
  CHECK(returned);
  CHECK(created.get() != nullptr);
  waited.get();
}

}  // namespace npu
