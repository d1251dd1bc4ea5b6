#include "tests/stress/stress.h"

#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/stress/worker.h"

namespace npu::stress {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kNoProgress{30};
constexpr std::chrono::seconds kGone{5};
constexpr std::chrono::milliseconds kLook{100};

// Stream threads of this process: their number must not grow once the devices are destroyed.
int StreamThreads() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  while (const dirent* task = readdir(tasks)) {
    std::string name;
    std::ifstream(std::string("/proc/self/task/") + task->d_name + "/comm") >> name;
    if (name.starts_with("npu") && name.find("-stream") != std::string::npos) ++count;
  }
  closedir(tasks);
  return count;
}

// How many there are beside `before`. The system lists a thread a moment longer than joining it takes.
int StreamThreadsLeft(int before) {
  const auto end = Clock::now() + kGone;
  int left = StreamThreads() - before;
  for (; left > 0 && Clock::now() < end; left = StreamThreads() - before) std::this_thread::sleep_for(kLook / 10);
  return left;
}

// Checks that threads make progress, and ends the process if one does not.
class Watchdog {
 public:
  Watchdog(uint64_t seed, std::FILE* out) : seed_(seed), out_(out), thread_([this] { Watch(); }) {}
  ~Watchdog() {
    over_.store(true);
    thread_.join();
  }

  void Watch(std::vector<std::unique_ptr<Worker>>& workers) {
    std::lock_guard lock(mutex_);
    workers_ = &workers;
    seen_.assign(workers.size(), {0, Clock::now()});
  }
  // From here on only the main thread does this.
  void Main(const char* what) {
    std::lock_guard lock(mutex_);
    workers_ = nullptr;
    main_ = what;
    main_since_ = Clock::now();
  }

 private:
  void Watch() {
    while (!over_.load()) {
      std::this_thread::sleep_for(kLook);
      std::lock_guard lock(mutex_);
      if (workers_ == nullptr) {
        if (main_ != nullptr && Clock::now() - main_since_ > kNoProgress) End(main_);
        continue;
      }
      for (size_t i = 0; i < workers_->size(); ++i) {
        const Worker& worker = *(*workers_)[i];
        auto& [steps, since] = seen_[i];
        if (worker.steps() != steps || std::string_view(worker.doing()) == "gone") {
          steps = worker.steps();
          since = Clock::now();
        } else if (Clock::now() - since > kNoProgress) {
          End("a thread");
        }
      }
    }
  }
  [[noreturn]] void End(const char* who) {
    std::fprintf(out_, "DIFFERENCE: no progress for 30 s: %s (seed %" PRIu64 ")\n", who, seed_);
    if (workers_ != nullptr)
      for (const auto& worker : *workers_)
        std::fprintf(out_, "  thread %d: %s, step %" PRIu64 "\n%s", worker->number(), worker->doing(), worker->steps(),
                     worker->Trail().c_str());
    std::fflush(out_);
    _exit(1);
  }

  const uint64_t seed_;
  std::FILE* const out_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>>* workers_ = nullptr;
  std::vector<std::pair<uint64_t, Clock::time_point>> seen_;
  const char* main_ = nullptr;
  Clock::time_point main_since_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// A round: everything is created, used by all threads, and destroyed. Returns the differences.
std::string Round(uint64_t seed, int threads, Clock::duration time, std::vector<uint64_t>& counts, std::FILE* out) {
  const int before = StreamThreads();
  Watchdog watchdog(seed, out);
  World world(seed);
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < threads; ++i) workers.push_back(std::make_unique<Worker>(world, i));
    std::atomic<bool> stop{false};
    std::vector<std::thread> running;
    for (const auto& worker : workers) running.emplace_back([&] { worker->Run(stop); });
    watchdog.Watch(workers);
    for (const auto end = Clock::now() + time; Clock::now() < end && !world.differs();)
      std::this_thread::sleep_for(kLook);
    stop.store(true);
    for (std::thread& thread : running) thread.join();
    watchdog.Main("letting go of the last objects");
    for (const auto& worker : workers)
      for (size_t i = 0; i < counts.size(); ++i) counts[i] += worker->counts()[i];
  }
  watchdog.Main("taking the devices down");
  world.TakeDown();
  if (const int left = StreamThreadsLeft(before); left > 0) world.Differ(Concat(left, " threads of streams are left"));
  return world.differences();
}

}  // namespace

bool RunStress(const Options& options, std::FILE* out) {
  std::vector<uint64_t> counts(Worker::Operations().size());
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  const Clock::time_point begin = Clock::now(), end = begin + seconds(options.seconds);
  uint64_t seed = options.seed;
  for (Clock::time_point now; (now = Clock::now()) < end; ++seed) {
    const auto time = std::min<Clock::duration>(seconds(options.round_seconds), end - now);
    const std::string differences = Round(seed, options.threads, time, counts, out);
    if (differences.empty()) continue;
    std::fprintf(out, "DIFFERENCE with seed %" PRIu64 " (%d threads):\n%s", seed, options.threads, differences.c_str());
    std::fflush(out);
    return false;
  }
  uint64_t all = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    std::fprintf(out, "%10" PRIu64 "  %s\n", counts[i], Worker::Operations()[i].name);
    all += counts[i];
  }
  std::fprintf(
      out, "no difference: %" PRIu64 " operations of %d threads in %.0f s, %" PRIu64 " rounds from seed %" PRIu64 "\n",
      all, options.threads, std::chrono::duration<double>(Clock::now() - begin).count(), seed - options.seed,
      options.seed);
  return true;
}

}  // namespace npu::stress
