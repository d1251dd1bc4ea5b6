#include "ep/runtime/launch_trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

namespace npu {
namespace {

struct Spans {
  std::mutex mutex;
  std::condition_variable all_ended;
  int64_t pending = 0;  // launched, and neither ended nor dropped
  std::vector<LaunchSpan> ended;
};

Spans& GetSpans() {
  static Spans& spans = *new Spans;
  return spans;
}

thread_local uint64_t cause_of_launches = 0;
thread_local LaunchSpan* running_launch = nullptr;

class RunningLaunch {
 public:
  explicit RunningLaunch(LaunchSpan* span) { running_launch = span; }
  ~RunningLaunch() { running_launch = nullptr; }
};

template <class Clock = std::chrono::steady_clock>
int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

int ThisThread() {
  thread_local const int id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

// Records the end of a launch, including one that threw or that was dropped before it began.
struct NoteEnd {
  void operator()(LaunchSpan* span) const {
    const std::unique_ptr<LaunchSpan> owned(span);
    owned->end_ns = NowNs();
    Spans& spans = GetSpans();
    std::lock_guard lock(spans.mutex);
    if (owned->begin_ns != 0) spans.ended.push_back(std::move(*owned));
    if (--spans.pending == 0) spans.all_ended.notify_all();
  }
};

}  // namespace

int64_t SteadyToSystemNs() {
  int64_t offset = 0;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 16; ++i) {  // the shortest measurement is the most accurate
    const int64_t before = NowNs();
    const int64_t system = NowNs<std::chrono::system_clock>();
    const int64_t after = NowNs();
    if (after - before >= shortest) continue;
    shortest = after - before;
    offset = system - (before + shortest / 2);
  }
  return offset;
}

std::atomic<bool> LaunchTrace::on_{false};

bool LaunchTrace::Start() {
  Spans& spans = GetSpans();
  std::lock_guard lock(spans.mutex);
  if (on_.load() || spans.pending != 0) return false;
  spans.ended.clear();
  on_.store(true);
  return true;
}

std::vector<LaunchSpan> LaunchTrace::Stop() {
  Spans& spans = GetSpans();
  std::unique_lock lock(spans.mutex);
  on_.store(false);
  spans.all_ended.wait(lock, [&] { return spans.pending == 0; });
  return std::exchange(spans.ended, {});
}

void LaunchTrace::SetCause(uint64_t cause) { cause_of_launches = cause; }

Task LaunchTrace::Timed(const char* op, int device, uint64_t stream, Task task) {
  auto made = std::make_unique<LaunchSpan>(LaunchSpan{.op = op,
                                                      .device = device,
                                                      .stream = stream,
                                                      .thread = ThisThread(),
                                                      .cause = cause_of_launches,
                                                      .issued_ns = NowNs()});
  Spans& spans = GetSpans();
  std::lock_guard lock(spans.mutex);
  if (!on_.load()) return task;  // stopped meanwhile
  ++spans.pending;
  return Task([span = std::unique_ptr<LaunchSpan, NoteEnd>(made.release()), task = std::move(task)]() mutable {
    const auto running = std::move(span);
    const RunningLaunch here(running.get());
    running->begin_ns = NowNs();
    task();
  });
}

LaunchSpan* LaunchTrace::Running() {
  if (running_launch != nullptr) running_launch->has_parts = true;  // set here: sharing threads only read it
  return running_launch;
}

LaunchTrace::Sharing::Sharing(LaunchSpan* launch) { running_launch = launch; }
LaunchTrace::Sharing::~Sharing() { running_launch = nullptr; }

LaunchTrace::Part::Part(const char* op) {
  if (running_launch == nullptr) return;
  if (!running_launch->has_parts) running_launch->has_parts = true;
  span_ = std::make_unique<LaunchSpan>(*running_launch);
  span_->op = op;
  span_->has_parts = false;
  span_->is_part = true;
  span_->begin_ns = NowNs();
}

LaunchTrace::Part::~Part() {
  if (span_ == nullptr) return;
  span_->end_ns = NowNs();
  Spans& spans = GetSpans();
  std::lock_guard lock(spans.mutex);
  spans.ended.push_back(std::move(*span_));
}

}  // namespace npu
