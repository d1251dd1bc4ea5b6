#include "tests/stress/worker.h"

#include <algorithm>
#include <utility>

#include "ep/runtime/error.h"

namespace npu::stress {
namespace {

constexpr size_t kStreams = 4;    // of each thread, half of them on each device
constexpr int kMostQueued = 200;  // launches on a stream before a wait
constexpr size_t kTrail = 40;

}  // namespace

const std::vector<Worker::Operation>& Worker::Operations() {
  static const std::vector<Operation> operations = {
      {"compute", 30, &Worker::Compute},
      {"fail", 5, &Worker::FailTask},
      {"synchronize", 12, &Worker::SynchronizeOne},
      {"query", 6, &Worker::QueryOne},
      {"allocate", 10, &Worker::AllocateOne},
      {"free", 8, &Worker::FreeOne},
      {"free in a task", 3, &Worker::FreeInTask},
      {"move to another stream", 6, &Worker::MoveOne},
      {"copy", 8, &Worker::CopyOne},
      {"look up", 4, &Worker::LookUp},
      {"ask for too much", 1, &Worker::AskTooMuch},
      {"empty the cache", 1, &Worker::EmptyCaches},
      {"wait between streams", 6, &Worker::WaitBetween},
      {"look at an event", 4, &Worker::LookAtEvent},
      {"record an event again", 4, &Worker::RecordAgain},
      {"wait in a task", 3, &Worker::WaitInTask},
      {"measure time", 2, &Worker::MeasureTime},
      {"external event", 5, &Worker::ExternalPair},
      {"launch always", 4, &Worker::RunAlways},
      {"unsynchronised run", 4, &Worker::RunUnsynchronised},
      {"destroy a stream", 3, &Worker::DropStream},
      {"visit a destroyed stream's work", 3, &Worker::VisitRemains},
      {"synchronize the device", 2, &Worker::SynchronizeDevice},
      {"post", 8, &Worker::Post},
      {"collect", 10, &Worker::Collect},
      {"capture", 4, &Worker::CaptureGraph},
      {"spoil a capture", 2, &Worker::SpoilCapture},
      {"replay", 14, &Worker::ReplayGraph},
      {"update a graph", 4, &Worker::UpdateGraph},
      {"destroy a graph", 2, &Worker::DropGraph},
      {"launch on a shared stream", 10, &Worker::LaunchShared},
      {"wait for a shared stream", 6, &Worker::SettleShared},
      {"a passing thread", 1, &Worker::PassingThread},
  };
  return operations;
}

Worker::Worker(World& world, int number)
    : world_(world),
      number_(number),
      random_(world.seed() * 1000003 + static_cast<uint64_t>(number)),
      streams_(kStreams),
      counts_(Operations().size()) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].device = static_cast<int>(i % World::kDevices);
    NewStream(streams_[i]);
  }
}

Worker::~Worker() = default;

void Worker::Run(const std::atomic<bool>& stop) {
  const auto& operations = Operations();
  std::vector<int> weights;
  for (const Operation& operation : operations) weights.push_back(operation.weight);
  std::discrete_distribution<size_t> choose(weights.begin(), weights.end());
  const auto guarded = [this](const char* name, const std::function<void()>& f) {
    doing_.store(name);
    try {
      f();
    } catch (const std::exception& e) {
      Differ(name, " threw ", e.what());
    }
    steps_.fetch_add(1);
  };
  while (!stop.load() && !world_.differs()) {
    const size_t chosen = choose(random_);
    const Operation& operation = operations[chosen];
    Note(operation.name);
    guarded(operation.name, [&] { (this->*operation.run)(); });
    ++counts_[chosen];
  }
  guarded("letting go", [this] { LetGo(); });
  doing_.store("gone");
}

std::string Worker::Trail() const {
  std::string all;
  for (const std::string& what : trail_) all += "    " + what + "\n";
  return all;
}

void Worker::Note(std::string what) {
  trail_.push_back(std::move(what));
  if (trail_.size() > kTrail) trail_.pop_front();
}

void Worker::ReportDifference(const std::string& what) {
  if (world_.differs()) return;  // later differences may be consequences of the first
  world_.Differ(
      Concat("thread ", number_, ", while doing: ", doing_.load(), "\n  ", what, "\n  what it did last:\n", Trail()));
}

void Worker::MustTell(const char* what, const std::vector<Fault>& faults, const std::function<void()>& call) {
  const char* const before = doing_.exchange(what);
  std::string expected;
  for (const Fault& fault : faults) expected += (expected.empty() ? "" : " | ") + fault;
  try {
    call();
    if (!faults.empty()) Differ(what, " did not throw, expected: ", expected);
  } catch (const Error& e) {
    const std::string text = e.what();
    const bool complete = std::all_of(faults.begin(), faults.end(),
                                      [&](const Fault& fault) { return text.find(fault) != std::string::npos; });
    if (e.code() != ErrorCode::kDeviceError || faults.empty() || !complete || (faults.size() == 1 && text != faults[0]))
      Differ(what, " threw: ", text, "\n  expected: ", faults.empty() ? "nothing" : expected);
  }
  doing_.store(before);
}

void Worker::MustRefuse(const char* what, const char* part, const std::function<void()>& call) {
  try {
    call();
    Differ(what, " succeeded, expected a refusal with: ", part);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInvalidArgument || std::string(e.what()).find(part) == std::string::npos)
      Differ(what, " threw: ", e.what(), "\n  expected a refusal with: ", part);
  }
}

void Worker::CheckReads(const char* where, std::vector<Read>& reads) {
  for (const Read& read : reads) {
    if (!read.expected.has_value()) continue;
    const std::string wrong = Mismatch(read.host->data(), read.host->size(), *read.expected);
    if (!wrong.empty()) Differ("a value read before ", where, " is wrong: ", wrong);
  }
  reads.clear();
}

void Worker::NewStream(OwnStream& s) {
  s.owner = Chance(50) ? StreamOwner::kOne : StreamOwner::kThreads;
  s.stream = world_.device(static_cast<size_t>(s.device)).CreateStream(0, s.owner);
  s.failure.clear();
  s.reads.clear();
  s.kept.clear();
  s.queued = 0;
}

OwnStream& Worker::SomeStream() {
  OwnStream& s = streams_[Upto(streams_.size())];
  if (s.queued > kMostQueued && s.script == nullptr) Synchronize(s);
  return s;
}

OwnStream* Worker::SomeStreamOn(int device, const OwnStream* but) {
  std::vector<OwnStream*> fitting;
  for (OwnStream& s : streams_)
    if (s.device == device && &s != but) fitting.push_back(&s);
  return fitting[Upto(fitting.size())];
}

// A launch must run if the stream has not failed, and must not run if it has.
void Worker::Launch(OwnStream& s, const char* op, Task task, Effect effect) {
  if (s.script != nullptr) {
    s.stream->Launch(op, std::move(task));
    s.script->effects.push_back(std::move(effect));
    return;
  }
  JoinDebts(s);
  ++s.queued;
  if (!s.failure.empty()) {
    s.stream->Launch(op, Task([&world = world_, number = number_, op, failure = s.failure] {
                       world.Differ(Concat("thread ", number, ": ", op, " ran after work that failed with: ", failure));
                     }));
    return;
  }
  s.stream->Launch(op, std::move(task));
  s.failure = effect();
}

Mark Worker::Record(OwnStream& s) {
  JoinDebts(s);
  Mark mark{std::make_shared<Event>(world_.backend()), s.failure};
  mark.event->Record(*s.stream);
  return mark;
}

void Worker::Wait(OwnStream& s, const Mark& mark) {
  s.stream->Wait(*mark.event);
  ++s.queued;
  if (!mark.failure.empty() && s.failure.empty()) Note(Concat("stream ", s.stream->id(), " fails with ", mark.failure));
  if (s.failure.empty()) s.failure = mark.failure;
}

void Worker::Synchronize(OwnStream& s) {
  std::vector<Fault> faults = TakeDebts(s.device);
  if (!s.failure.empty() && std::find(faults.begin(), faults.end(), s.failure) == faults.end())
    faults.push_back(s.failure);
  std::string due;
  for (const Fault& fault : faults) due += ", due: " + fault;
  Note(Concat("synchronize stream ", s.stream->id(), due));
  MustTell("Stream::Synchronize", faults, [&] { s.stream->Synchronize(); });
  s.failure.clear();
  s.queued = 0;
  CheckReads("Stream::Synchronize", s.reads);
  s.kept.clear();
}

// This thread's work follows the runs that it did not wait for, and fails with them.
void Worker::JoinDebts(OwnStream& s) {
  for (Debt& debt : debts_) {
    if (debt.device != s.device || !debt.joined.insert(s.stream->id()).second) continue;
    if (s.failure.empty()) s.failure = debt.failure;
    Note(Concat("stream ", s.stream->id(), " comes behind a run that failed with ", debt.failure));
  }
}

std::vector<Fault> Worker::TakeDebts(int device) {
  std::vector<Fault> faults;
  for (const Debt& debt : debts_)
    if (debt.device == device && std::find(faults.begin(), faults.end(), debt.failure) == faults.end())
      faults.push_back(debt.failure);
  std::erase_if(debts_, [=](const Debt& debt) { return debt.device == device; });
  return faults;
}

// In any order: work in flight keeps what it needs.
void Worker::LetGo() {
  for (size_t i = 0; i < shared_.size(); ++i) Settle(world_.shared(i), shared_[i], 0);
  SettleRemains(/*wait=*/true);
  for (OwnStream& s : streams_)
    if (Chance(50)) Synchronize(s);
  std::vector<std::function<void()>> parts;
  parts.push_back([this] { buffers_.clear(); });
  parts.push_back([this] {
    external_.reset();
    external_taken_.reset();
  });
  parts.push_back([this] { again_ = {}; });
  for (const auto& captured : graphs_) {
    parts.push_back([this, captured] {
      if (captured->last != nullptr)
        std::move(captured->kept.begin(), captured->kept.end(), std::back_inserter(captured->last->kept));
      captured->graph.reset();
    });
    parts.push_back([captured] { captured->buffers.clear(); });
  }
  for (OwnStream& s : streams_) {
    parts.push_back([this, &s] {
      remains_.push_back({s.device, Record(s), std::move(s.reads), {}});
      s.stream.reset();
    });
  }
  std::shuffle(parts.begin(), parts.end(), random_);
  for (const auto& part : parts) part();
  SettleRemains(/*wait=*/true);  // objects kept for work in flight are released with the streams' records
  for (OwnStream& s : streams_) s.kept.clear();
  graphs_.clear();
  for (SharedState& state : shared_) state = {};
}

}  // namespace npu::stress
