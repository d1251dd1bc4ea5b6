#include "ep/runtime/launch_trace.h"

#include <chrono>
#include <mutex>
#include <utility>

namespace npu {
namespace {

struct Spans {
  std::mutex mutex;
  std::vector<LaunchSpan> ended;
};

Spans& GetSpans() {
  static Spans& spans = *new Spans;
  return spans;
}

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Notes the end of a task even when it throws.
class Span {
 public:
  explicit Span(LaunchSpan span) : span_(std::move(span)) { span_.begin_ns = NowNs(); }
  ~Span() {
    span_.end_ns = NowNs();
    Spans& spans = GetSpans();
    std::lock_guard lock(spans.mutex);
    if (LaunchTrace::On()) spans.ended.push_back(std::move(span_));
  }

 private:
  LaunchSpan span_;
};

}  // namespace

std::atomic<bool> LaunchTrace::on_{false};

void LaunchTrace::Start() {
  Spans& spans = GetSpans();
  std::lock_guard lock(spans.mutex);
  spans.ended.clear();
  on_.store(true);
}

std::vector<LaunchSpan> LaunchTrace::Stop() {
  Spans& spans = GetSpans();
  std::lock_guard lock(spans.mutex);
  on_.store(false);
  return std::exchange(spans.ended, {});
}

Task LaunchTrace::Timed(const char* op, int device, uint64_t stream, Task task) {
  return Task([op, device, stream, task = std::move(task)]() mutable {
    const Span span({op, device, stream, 0, 0});
    task();
  });
}

}  // namespace npu
