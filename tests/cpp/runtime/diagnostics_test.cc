#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/tensor_dump.h"
#include "tests/cpp/support/temporary_folder.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

TEST_CASE("a launch trace has every launch with its stream and time, including failed ones") {
  test::TestDevice t;
  t.stream().Launch("before", Task([] {}));
  t.stream().Synchronize();
  REQUIRE(LaunchTrace::Start());
  CHECK_FALSE(LaunchTrace::Start());
  std::vector<char> bytes(16);
  LaunchTrace::SetCause(7);
  t.stream().Launch("first", Task([] {}));
  LaunchTrace::SetCause(0);
  t.stream().Memset(bytes.data(), 1, 16);
  t.stream().Launch("bad", Task([] { throw std::runtime_error("no"); }));
  const std::vector<LaunchSpan> spans = LaunchTrace::Stop();  // waits, but does not consume the error
  CHECK_THROWS_AS(t.stream().Synchronize(), Error);
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].op == "first");
  CHECK(spans[1].op == "memset");
  CHECK(spans[2].op == "bad");
  CHECK(bytes[15] == 1);
  for (size_t i = 0; i < spans.size(); ++i) {
    CHECK(spans[i].stream == t.stream().id());
    CHECK(spans[i].thread > 0);
    CHECK(spans[i].cause == (i == 0 ? 7 : 0));
    CHECK(spans[i].issued_ns <= spans[i].begin_ns);
    CHECK(spans[i].begin_ns <= spans[i].end_ns);
    CHECK((i == 0 || spans[i - 1].end_ns <= spans[i].begin_ns));
  }
  t.stream().Launch("after", Task([] {}));
  t.stream().Synchronize();
  CHECK(LaunchTrace::Stop().empty());
}

TEST_CASE("a launch trace has the nodes of a replayed graph as parts of one launch") {
  test::TestDevice t;
  const std::unique_ptr<Stream> side = t.device.CreateStream();
  Graph graph;
  graph.CaptureBegin(*side);
  side->Launch("one", Task([] {}));
  side->Launch("two", Task([] {}));
  graph.CaptureEnd(*side);
  graph.Replay(t.stream());
  t.stream().Synchronize();
  REQUIRE(LaunchTrace::Start());
  graph.Replay(t.stream());
  const std::vector<LaunchSpan> spans = LaunchTrace::Stop();
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].op == "one");
  CHECK(spans[1].op == "two");
  CHECK(spans[2].op == "graph");
  CHECK(spans[2].has_parts);
  for (int i : {0, 1}) {
    CHECK(spans[i].is_part);
    CHECK_FALSE(spans[i].has_parts);
    CHECK(spans[i].stream == t.stream().id());
    CHECK(spans[2].begin_ns <= spans[i].begin_ns);
    CHECK(spans[i].end_ns <= spans[i + 1].end_ns);
  }
}

TEST_CASE("the steady clock plus its offset equals the system clock") {
  const auto ns = [](auto time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  const int64_t before = ns(std::chrono::system_clock::now());
  const int64_t time = ns(std::chrono::steady_clock::now()) + SteadyToSystemNs();
  const int64_t after = ns(std::chrono::system_clock::now());
  constexpr int64_t kSlack = 1'000'000;  // an interrupted reading is off by half of the interruption
  CHECK(time >= before - kSlack);
  CHECK(time <= after + kSlack);
}

TEST_CASE("a dump writes NumPy files in stream order for the selected operators") {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  test::TestDevice t;
  std::vector<float> x{1.0f, 2.0f, 3.0f};
  const TensorView view{x.data(), DType::kFloat32, true, Shape{1, 3}};
  TensorDump::Start({folder.path() + "/made", true, false, {"Wanted"}});
  CHECK(TensorDump::On());
  const TensorDump wanted("Wanted"), other("Other");
  wanted.Inputs(t.stream(), {view, TensorView{}});
  wanted.Outputs(t.stream(), {view});
  other.Inputs(t.stream(), {view});
  t.stream().Synchronize();
  TensorDump::Stop();
  CHECK_FALSE(TensorDump::On());
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/made")) files.push_back(entry.path());
  REQUIRE(files.size() == 1);
  CHECK(files[0].filename().string().find("Wanted.") == 0);
  std::ifstream in(files[0], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text.size() % 64 == 12);  // the data is aligned
  CHECK(text.substr(1, 5) == "NUMPY");
  CHECK(text.find("'descr': '<f4', 'fortran_order': False, 'shape': (1,3,)") != std::string::npos);
  CHECK_THROWS_AS(TensorDump::Start({std::string(files[0]) + "/below", true, true, {}}), Error);
}

}  // namespace npu
