// Waits, events, and streams destroyed while busy.
#include <algorithm>
#include <iterator>
#include <utility>

#include "ep/runtime/backend.h"
#include "ep/runtime/error.h"
#include "ep/runtime/outstanding.h"
#include "tests/stress/worker.h"

namespace npu::stress {
namespace {

constexpr size_t kMostRemains = 6;

std::vector<std::string> PartsOf(const std::string& text) {
  static const std::string between = "; and on another stream: ";
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(between, begin)) != std::string::npos; begin = end + between.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<Fault> Of(const Fault& fault) { return fault.empty() ? std::vector<Fault>{} : std::vector<Fault>{fault}; }

}  // namespace

void Worker::SynchronizeOne() { Synchronize(SomeStream()); }

void Worker::QueryOne() {
  OwnStream& s = SomeStream();
  const char* const before = doing_.exchange("Stream::Query");
  bool over = false;
  try {
    over = s.stream->Query();
    if (over && !s.failure.empty()) Differ("Stream::Query did not throw, expected: ", s.failure);
  } catch (const Error& e) {
    over = true;
    if (e.code() != ErrorCode::kDeviceError || s.failure != e.what())
      Differ("Stream::Query threw: ", e.what(), "\n  expected: ", s.failure.empty() ? "nothing" : s.failure);
    if (s.owner == StreamOwner::kThreads) s.failure.clear();  // the other kind resumes after a wait
  }
  doing_.store(before);
  if (!over) return;
  CheckReads("Stream::Query", s.reads);
  s.kept.clear();
  s.queued = 0;
}

void Worker::WaitBetween() {
  OwnStream& from = SomeStream();
  OwnStream& to = SomeStream();
  if (&from == &to) return;
  Note(Concat("stream ", to.stream->id(), " waits for stream ", from.stream->id()));
  Wait(to, Record(from));
}

void Worker::LookAtEvent() {
  OwnStream& s = SomeStream();
  const BufferPtr buffer = SomeBuffer(s);
  std::vector<Read> reads;
  if (buffer->value) {
    reads.swap(s.reads);
    ReadBack(s, *buffer);
    reads.swap(s.reads);
  }
  const Mark mark = Record(s);
  if (Chance(30)) {
    bool over = false;
    const auto query = [&] { over = mark.event->Query(); };
    try {
      query();
      if (over && !mark.failure.empty()) Differ("Event::Query did not throw, expected: ", mark.failure);
    } catch (const Error& e) {
      if (mark.failure != e.what()) Differ("Event::Query threw: ", e.what(), "\n  expected: ", mark.failure);
    }
  }
  MustTell("Event::Synchronize", Of(mark.failure), [&] { mark.event->Synchronize(); });
  if (mark.failure.empty() && buffer->value) {
    const std::string wrong = Mismatch(buffer->memory->Contents().data(), buffer->count(), *buffer->value);
    if (!wrong.empty()) Differ("memory after an event is wrong: ", wrong);
  }
  CheckReads("Event::Synchronize", reads);
}

void Worker::RecordAgain() {
  OwnStream& s = SomeStream();
  if (again_.event == nullptr || Chance(10)) again_ = {std::make_shared<Event>(world_.backend()), {}};
  JoinDebts(s);
  again_.event->Record(*s.stream);
  again_.failure = s.failure;
  for (size_t i = Upto(3); i > 0; --i) {
    OwnStream& to = SomeStream();
    if (&to != &s) Wait(to, again_);
  }
  if (Chance(20)) MustTell("Event::Synchronize", Of(again_.failure), [&] { again_.event->Synchronize(); });
}

void Worker::WaitInTask() {
  OwnStream& from = SomeStream();
  OwnStream& to = SomeStream();
  if (&from == &to) return;
  const Mark mark = Record(from);
  Launch(to, "stress_wait", Task([event = mark.event] { event->Synchronize(); }), [=] { return mark.failure; });
}

void Worker::MeasureTime() {
  OwnStream& s = SomeStream();
  Event begin(world_.backend(), /*timing=*/true), end(world_.backend(), /*timing=*/true);
  JoinDebts(s);
  begin.Record(*s.stream);
  const BufferPtr buffer = SomeBuffer(s);
  if (buffer->value) ScaleBuffer(s, buffer);
  end.Record(*s.stream);
  Synchronize(s);
  const double ms = begin.ElapsedMs(end);
  if (ms < 0) Differ("ElapsedMs: expected a time of at least 0, got ", ms);
}

// An external event gives its records, in order, to the first wait that runs. So each pair follows the previous one on
// both of its streams; otherwise two pairs could swap their records.
void Worker::ExternalPair() {
  OwnStream& from = SomeStream();
  OwnStream& to = SomeStream();
  if (&from == &to) return;
  if (external_ == nullptr || Chance(10)) {
    external_ = std::make_unique<ExternalEvent>();
    external_taken_.reset();
  }
  if (external_taken_) {
    Wait(from, *external_taken_);
    Wait(to, *external_taken_);
  }
  const bool wait_first = Chance(50);
  JoinDebts(to);
  const bool to_failed = !to.failure.empty();
  Note(Concat("external event from stream ", from.stream->id(), " to ", to.stream->id()));
  if (wait_first) external_->Wait(*to.stream);
  JoinDebts(from);
  external_->Record(*from.stream);
  if (!wait_first) external_->Wait(*to.stream);
  ++from.queued;
  ++to.queued;
  if (to_failed) {
    external_.reset();  // whether that wait consumed the record depends on the order
  } else {
    to.failure = from.failure;
    external_taken_ = Record(to);
  }
}

void Worker::RunAlways() {
  OwnStream& s = SomeStream();
  JoinDebts(s);
  ++s.queued;
  s.stream->LaunchAlways(
      "stress_always", [expected = s.failure, &world = world_, number = number_](const Status& told) {
        const std::string got = told == nullptr ? "" : told->message;
        if (got != expected)
          world.Differ(Concat("thread ", number, ": LaunchAlways got \"", got, "\", expected \"", expected, '"'));
      });
}

// Like an unsynchronised run of an inference session: it follows the caller's stream on a stream of its own, and later
// work of the caller follows it.
void Worker::RunUnsynchronised() {
  OwnStream& caller = SomeStream();
  OwnStream& run = *SomeStreamOn(caller.device, &caller);
  if (run.owner != StreamOwner::kOne) return;
  Wait(run, Record(caller));
  const BufferPtr buffer = SomeBuffer(run);
  FillBuffer(run, buffer, SomePattern());
  if (Chance(40)) {
    const Fault text = World::FaultText(world_.NewFaultNumber(), number_);
    Note(Concat("an unsynchronised run on stream ", run.stream->id(), " fails with ", text));
    Launch(run, "stress_run", Task([text] { Fail(ErrorCode::kInvalidArgument, text); }),
           [=] { return "[stress_run] " + text; });
  }
  if (Chance(50)) ScaleBuffer(run, buffer);
  auto done = std::make_shared<Event>(world_.backend());
  world_.backend().EventRecord(done->handle(), run.stream->handle());
  world_.backend().StreamResume(run.stream->handle(), nullptr);
  Outstanding::Add(run.stream->device(), done);
  Note(Concat("an unsynchronised run on stream ", run.stream->id(), ": ", run.failure));
  if (!run.failure.empty()) debts_.push_back({run.device, std::exchange(run.failure, {}), {}});
}

// Queued work still runs, and its event still reports its status.
void Worker::DropStream() {
  OwnStream& s = SomeStream();
  OwnStream& other = *SomeStreamOn(s.device, &s);
  if (!s.failure.empty() && Chance(70)) Synchronize(s);
  Note(Concat("destroy stream ", s.stream->id()));
  for (const auto& captured : graphs_) {
    if (captured->last != &s) continue;
    for (const BufferPtr& buffer : captured->buffers) MoveTo(*buffer, other);
    captured->last = &other;
  }
  for (auto buffer = buffers_.begin(); buffer != buffers_.end();) {
    const bool here = (*buffer)->home == &s;
    if (here && Chance(50)) MoveTo(**buffer, other);
    buffer = here && (*buffer)->home == &s ? buffers_.erase(buffer) : std::next(buffer);
  }
  const Mark mark = Record(s);
  // An error that is never reported is logged at destruction; rarely is enough.
  if (Chance(95)) world_.backend().StreamResume(s.stream->handle(), nullptr);
  remains_.push_back({s.device, mark, std::move(s.reads), std::move(s.kept)});
  const auto stream = std::move(s.stream);
  NewStream(s);
  if (Chance(40)) {
    OwnStream& elsewhere = SomeStream();
    Launch(elsewhere, "stress_drop",
           Task([keep = std::make_shared<std::shared_ptr<Stream>>(stream)] { keep->reset(); }), [] { return Fault(); });
  }
  if (remains_.size() > kMostRemains) SettleRemains(/*wait=*/true);
}

void Worker::VisitRemains() { SettleRemains(Chance(20)); }

void Worker::SettleRemains(bool wait) {
  for (auto it = remains_.begin(); it != remains_.end();) {
    if (!wait) {
      bool over = true;
      try {
        over = it->mark.event->Query();
      } catch (const Error&) {  // checked below
      }
      if (!over) {
        ++it;
        continue;
      }
    }
    MustTell("Event::Synchronize of a destroyed stream", Of(it->mark.failure), [&] { it->mark.event->Synchronize(); });
    CheckReads("Event::Synchronize of a destroyed stream", it->reads);
    it = remains_.erase(it);
  }
}

void Worker::SynchronizeDevice() { SynchronizeDevice(static_cast<int>(Upto(World::kDevices))); }

// Collects all errors of the device: exactly the expected ones of this thread's streams, any issued ones of others.
void Worker::SynchronizeDevice(int device) {
  const auto index = static_cast<size_t>(device);
  for (size_t i = 0; i < shared_.size(); ++i)
    if (world_.shared(i).stream->device().index() == device) Settle(world_.shared(i), shared_[i], 0);
  std::vector<Fault> mine;
  for (const OwnStream& s : streams_)
    if (s.device == device && !s.failure.empty()) mine.push_back(s.failure);
  for (const Debt& debt : debts_)
    if (debt.device == device) mine.push_back(debt.failure);
  Interval& captures = world_.global_captures[index];
  const uint64_t since = captures.Now();
  const char* const before = doing_.exchange("Device::Synchronize");
  try {
    world_.device(index).Synchronize();
    if (!mine.empty()) Differ("Device::Synchronize did not throw, expected: ", mine[0]);
  } catch (const Error& e) {
    const std::string text = e.what();
    if (e.code() == ErrorCode::kInvalidArgument && text.find("synchronize of the device") != std::string::npos) {
      if (!captures.Since(since)) Differ("Device::Synchronize was refused without a global capture: ", text);
      doing_.store(before);
      return;
    }
    const std::vector<std::string> parts = PartsOf(text);
    if (e.code() != ErrorCode::kDeviceError) Differ("Device::Synchronize threw: ", text);
    for (const Fault& fault : mine)
      if (std::find(parts.begin(), parts.end(), fault) == parts.end())
        Differ("Device::Synchronize threw: ", text, "\n  expected among it: ", fault);
    for (const std::string& part : parts)
      if (!world_.Issued(part)) Differ("Device::Synchronize threw an error that no task caused: ", part);
  }
  doing_.store(before);
  TakeDebts(device);
  for (OwnStream& s : streams_) {
    if (s.device == device && s.owner == StreamOwner::kThreads) s.failure.clear();
  }
  // The wait covers destroyed streams, too.
  for (const Remains& remains : remains_) {
    if (remains.device == device && !world_.backend().EventQuery(remains.mark.event->handle()))
      Differ("Device::Synchronize returned before a destroyed stream's work was complete");
  }
}

void Worker::Post() {
  OwnStream& s = SomeStream();
  Parcel parcel;
  if (Chance(70)) {
    BufferPtr buffer = SomeBuffer(s);
    if (!buffer->value) FillBuffer(s, buffer, SomePattern());
    std::erase(buffers_, buffer);
    parcel.memory = buffer->memory;
    parcel.value = buffer->value.value_or(Pattern{});
    parcel.known = buffer->value.has_value();
  }
  parcel.mark = Record(s);
  world_.Put(Upto(World::kParcels), std::move(parcel));
}

void Worker::Collect() {
  const Parcel parcel = world_.Get(Upto(World::kParcels));
  if (parcel.mark.event == nullptr) return;
  const Fault& failure = parcel.mark.failure;
  if (Chance(30)) {
    MustTell("Event::Synchronize of another thread's event", Of(failure), [&] { parcel.mark.event->Synchronize(); });
    if (!failure.empty() || !parcel.known) return;
    const std::string wrong = Mismatch(parcel.memory->Contents().data(), parcel.memory->count(), parcel.value);
    if (!wrong.empty()) Differ("another thread's memory is wrong: ", wrong);
    return;
  }
  OwnStream& s = SomeStream();
  Note(Concat("stream ", s.stream->id(), " waits for another thread's event"));
  Wait(s, parcel.mark);
  if (parcel.memory == nullptr) return;
  CachingAllocator& allocator = parcel.memory->device().allocator();
  const bool record_before = Chance(50);
  if (record_before) allocator.RecordStream(parcel.memory->data(), *s.stream);
  Buffer theirs{parcel.memory, parcel.known ? std::optional(parcel.value) : std::nullopt, &s};
  if (Chance(50)) {
    VerifyInOrder(s, theirs);
  } else {
    const BufferPtr copy = NewBuffer(s, theirs.count());
    JoinDebts(s);
    s.stream->Copy(copy->data(), theirs.data(), theirs.memory->bytes(), CopyKind::kDeviceToDevice);
    if (s.failure.empty()) copy->value = theirs.value;
    Keep(copy);
  }
  if (!record_before) allocator.RecordStream(parcel.memory->data(), *s.stream);
}

}  // namespace npu::stress
