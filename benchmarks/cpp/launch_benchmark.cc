// What the runtime itself costs: launches, fork-joins, allocations, events. Medians over repetitions,
// with the 10th and 90th percentile, because other processes share the machine.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/tensor.h"
#include "ep/runtime/thread_pool.h"

namespace {

using Clock = std::chrono::steady_clock;

int64_t Now() { return Clock::now().time_since_epoch().count(); }

void Report(const char* what, std::vector<double> ns) {
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double q) { return ns[static_cast<size_t>(q * static_cast<double>(ns.size() - 1))]; };
  std::printf("%-58s %9.0f %9.0f %9.0f\n", what, at(0.1), at(0.5), at(0.9));
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
  std::printf("%s, %d threads\n%-58s %9s %9s %9s\n", device.properties().name.c_str(), npu::NumThreads(), "nanoseconds",
              "p10", "median", "p90");
  Launches(device);
  ForkJoins();
  Allocations(device);
  Events(device);
}
