// What the runtime itself costs: launches, graphs, fork-joins, allocations, events. Medians over repetitions,
// with the 10th and 90th percentile, because other processes share the machine. Beside them what the machine's own
// futex takes to wake a thread: no hand-off to a sleeper is quicker.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "ep/runtime/device.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/tensor.h"
#include "ep/runtime/thread_pool.h"

namespace {

using Clock = std::chrono::steady_clock;

int64_t Now() { return Clock::now().time_since_epoch().count(); }

void Report(const char* what, std::vector<double> ns) {
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double q) { return ns[static_cast<size_t>(q * static_cast<double>(ns.size() - 1))]; };
  std::printf("%-72s %9.0f %9.0f %9.0f\n", what, at(0.1), at(0.5), at(0.9));
}

// Runs `sample`, which returns nanoseconds, `count` times after a few that are not counted.
void Measure(const char* what, int count, const std::function<double()>& sample) {
  for (int i = 0; i < count / 10 + 1; ++i) sample();
  std::vector<double> ns;
  for (int i = 0; i < count; ++i) ns.push_back(sample());
  Report(what, std::move(ns));
}

struct Arguments {  // of a typical kernel: three views
  npu::TensorView x, y, z;
};

void Launches(npu::Device& device) {
  constexpr int kChain = 500;
  npu::Stream& stream = device.default_stream();
  int64_t sink = 0;
  Arguments arguments;
  const auto chain = [&] {
    for (int i = 0; i < kChain; ++i)
      stream.Launch("tiny", [&sink, arguments] { sink += arguments.x.dtype == npu::DType::kInt8; });
  };
  Measure("enqueue, per launch in a chain of 500", 300, [&] {
    const int64_t begin = Now();
    chain();
    const int64_t end = Now();
    stream.Synchronize();
    return static_cast<double>(end - begin) / kChain;
  });
  Measure("enqueue + run + synchronize, per launch in a chain of 500", 300, [&] {
    const int64_t begin = Now();
    chain();
    stream.Synchronize();
    return static_cast<double>(Now() - begin) / kChain;
  });
  const auto latency = [&](std::chrono::microseconds pause) {
    std::this_thread::sleep_for(pause);
    std::atomic<int64_t> started{0};
    const int64_t begin = Now();
    stream.Launch("tiny", [&started] { started = Now(); });
    while (started == 0) {
    }
    const double ns = static_cast<double>(started - begin);
    stream.Synchronize();
    return ns;
  };
  Measure("launch to start, worker awake", 2000, [&] { return latency(std::chrono::microseconds(0)); });
  Measure("launch to start, worker asleep (1 ms idle)", 200, [&] { return latency(std::chrono::microseconds(1000)); });
  Measure("launch + synchronize, round trip", 2000, [&] {
    const int64_t begin = Now();
    stream.Launch("tiny", [&sink] { ++sink; });
    stream.Synchronize();
    return static_cast<double>(Now() - begin);
  });
}

void Replays(npu::Device& device) {
  constexpr int kNodes = 500;
  const auto stream = device.CreateStream();
  npu::Graph graph;
  int64_t sink = 0;
  Arguments arguments;
  graph.CaptureBegin(*stream);
  for (int i = 0; i < kNodes; ++i)
    stream->Launch("tiny", [&sink, arguments] { sink += arguments.x.dtype == npu::DType::kInt8; });
  graph.CaptureEnd(*stream);
  Measure("replay + synchronize of a graph, per node of 500", 300, [&] {
    const int64_t begin = Now();
    graph.Replay(*stream);
    stream->Synchronize();
    return static_cast<double>(Now() - begin) / kNodes;
  });
}

#if defined(__linux__)
void Pin(std::thread::native_handle_type thread, int cpu) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<size_t>(cpu), &only);
  pthread_setaffinity_np(thread, sizeof(only), &only);
}

// A thread asleep on one CPU, woken from another whose thread goes on working: from before the wake to when it runs.
void FutexWakes() {
  if (std::thread::hardware_concurrency() < 2) return;
  std::atomic<uint32_t> turn{0};
  std::atomic<int64_t> ran{0};
  std::atomic<bool> ends{false};
  std::thread sleeper([&] {
    for (uint32_t seen = 0; !ends; seen = turn) {
      turn.wait(seen);
      ran = Now();
    }
  });
  cpu_set_t before;
  pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
  Pin(sleeper.native_handle(), 1);
  Pin(pthread_self(), 0);
  for (const int pause_us : {50, 1000}) {
    double call = 0;
    const auto wake = [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      ran = 0;
      const int64_t begin = Now();
      ++turn;
      turn.notify_one();
      call = static_cast<double>(Now() - begin);
      while (ran == 0) {
      }
      return static_cast<double>(ran - begin);
    };
    const std::string idle = " after " + std::to_string(pause_us) + " us idle, two pinned threads";
    Measure(("bare futex: wake to running" + idle).c_str(), 500, wake);
    Measure(("bare futex: the waker's call" + idle).c_str(), 500, [&] {
      wake();
      return call;
    });
  }
  ends = true;
  ++turn;
  turn.notify_one();
  sleeper.join();
  pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
}
#else
void FutexWakes() {}
#endif

void ForkJoins() {
  const int threads = npu::NumThreads();
  const auto fork_join = [&] {
    const int64_t begin = Now();
    npu::ParallelFor(threads, 1, [](int64_t, int64_t) {});
    return static_cast<double>(Now() - begin);
  };
  Measure("fork-join of empty ranges, workers awake", 5000, fork_join);
  Measure("fork-join of empty ranges, workers asleep (1 ms idle)", 200, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return fork_join();
  });
}

void Allocations(npu::Device& device) {
  npu::CachingAllocator& allocator = device.allocator();
  npu::Stream& stream = device.default_stream();
  for (const auto& [what, bytes] :
       {std::pair{"allocate + free, 4 KiB", size_t{4} << 10}, {"allocate + free, 4 MiB", size_t{4} << 20}}) {
    Measure(what, 500, [&, bytes = bytes] {
      constexpr int kPairs = 100;
      const int64_t begin = Now();
      for (int i = 0; i < kPairs; ++i) allocator.Free(allocator.Allocate(bytes, stream));
      return static_cast<double>(Now() - begin) / kPairs;
    });
  }
}

void Events(npu::Device& device) {
  const auto other = device.CreateStream();
  npu::Stream& stream = device.default_stream();
  npu::Event event(device.backend());
  Measure("record + wait between two streams, per hop in a chain of 100", 200, [&] {
    constexpr int kHops = 100;
    const int64_t begin = Now();
    for (int i = 0; i < kHops; ++i) {
      npu::Stream& from = i % 2 == 0 ? stream : *other;
      npu::Stream& to = i % 2 == 0 ? *other : stream;
      from.Launch("tiny", [] {});
      event.Record(from);
      to.Wait(event);
    }
    stream.Synchronize();
    other->Synchronize();
    return static_cast<double>(Now() - begin) / kHops;
  });
}

}  // namespace

int main() {
  npu::Device& device = npu::Runtime::Instance().device(0);
  std::printf("%s, %d threads\n%-72s %9s %9s %9s\n", device.properties().name.c_str(), npu::NumThreads(), "nanoseconds",
              "p10", "median", "p90");
  Launches(device);
  Replays(device);
  FutexWakes();
  ForkJoins();
  Allocations(device);
  Events(device);
}
