// One thread of the stress program. It predicts results from the calls alone: a stream that only this thread uses
// either works or has failed with one known message, each buffer on it holds one known pattern, and every call updates
// both. Work skipped after a failure must not run, other work must have its effect, and every wait throws exactly the
// expected message. Events carry their stream's message at the record to other threads, so this holds across threads
// and devices.
//
// Streams that several threads launch on are checked more loosely, since the order of their work is unknown: an error
// must be one that some thread caused on the stream; an error that this thread caused must be reported; and without an
// error values are as expected.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ep/runtime/external_event.h"
#include "ep/runtime/graph.h"
#include "tests/stress/world.h"

namespace npu::stress {

struct OwnStream;

// Memory, its content in stream order, and the stream.
struct Buffer {
  std::shared_ptr<Memory> memory;
  std::optional<Pattern> value{};  // unknown: never written, or its writers were skipped
  OwnStream* home = nullptr;

  uint64_t* data() const { return memory->data(); }
  size_t count() const { return memory->count(); }
};
using BufferPtr = std::shared_ptr<Buffer>;

// A copy to the host, to be checked after a wait for its stream.
struct Read {
  std::shared_ptr<std::vector<uint64_t>> host;
  std::optional<Pattern> expected;  // unknown: anything
};

// The effect of a launch on the buffers; returns its error message, if any.
using Effect = std::function<Fault()>;

// The effects of captured launches, applied at each replay.
struct Script {
  std::vector<Effect> effects;
};

struct OwnStream {
  std::shared_ptr<Stream> stream;
  int device = 0;
  StreamOwner owner = StreamOwner::kOne;
  Fault failure;                            // of its last enqueued work
  std::vector<Read> reads;                  // since the last wait
  std::vector<std::shared_ptr<void>> kept;  // host memory used by its work
  int queued = 0;                           // launches since then
  Script* script = nullptr;                 // of the capture that the stream is part of
};

// Work on a stream that this thread has destroyed.
struct Remains {
  int device = 0;
  Mark mark;
  std::vector<Read> reads;
  std::vector<std::shared_ptr<void>> kept;
};

// Graphs that share a pool: their replays are serialised.
struct GraphPool {
  int device = 0;
  PoolId id{};
  std::optional<Mark> last;
};

struct Captured {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::shared_ptr<GraphPool> pool;
  Script script;
  std::vector<BufferPtr> buffers;  // external buffers that it accesses; buffers[0] is the index cell
  std::vector<std::shared_ptr<void>> kept;
  bool forked = false;
  GraphTaskGroup group;
  size_t group_effect = 0;               // where the group's effects begin in the script
  std::vector<BufferPtr> group_buffers;  // that its launches fill
  OwnStream* last = nullptr;             // of the last replay
};

// This thread's state on a shared stream, since its last error or successful wait.
struct SharedState {
  Fault due;  // an error is expected: this one, or one that hides it
  std::vector<Read> reads;
  BufferPtr buffer;
};

class Worker {
 public:
  struct Operation {
    const char* name;
    int weight;
    void (Worker::*run)();
  };
  static const std::vector<Operation>& Operations();

  Worker(World& world, int number);
  ~Worker();

  void Run(const std::atomic<bool>& stop);
  int number() const { return number_; }
  uint64_t steps() const { return steps_.load(); }
  const char* doing() const { return doing_.load(); }
  const std::vector<uint64_t>& counts() const { return counts_; }
  std::string Trail() const;  // the latest operations

 private:
  // Random choices.
  size_t Upto(size_t n) { return static_cast<size_t>(random_() % n); }  // 0 to n-1
  bool Chance(int percent) { return Upto(100) < static_cast<size_t>(percent); }
  Pattern SomePattern() { return {random_(), random_()}; }
  size_t SomeCount();

  // Reports, and expectations of calls.
  void Note(std::string what);
  template <class... Args>
  void Differ(Args&&... args) {
    ReportDifference(Concat(std::forward<Args>(args)...));
  }
  void ReportDifference(const std::string& what);
  // `call` must throw kDeviceError whose text names each of `faults`; none: it must not throw.
  void MustTell(const char* what, const std::vector<Fault>& faults, const std::function<void()>& call);
  // `call` must throw kInvalidArgument with this part in its text.
  void MustRefuse(const char* what, const char* part, const std::function<void()>& call);
  void CheckReads(const char* where, std::vector<Read>& reads);

  // Streams of this thread: worker.cc.
  OwnStream& SomeStream();
  OwnStream* SomeStreamOn(int device, const OwnStream* but = nullptr);
  void NewStream(OwnStream& s);
  void Launch(OwnStream& s, const char* op, Task task, Effect effect);
  Mark Record(OwnStream& s);
  void Wait(OwnStream& s, const Mark& mark);
  void Synchronize(OwnStream& s);
  void JoinDebts(OwnStream& s);
  std::vector<Fault> TakeDebts(int device);

  // Buffers: worker_memory.cc.
  BufferPtr NewBuffer(OwnStream& s, size_t count);
  BufferPtr SomeBuffer(OwnStream& s);
  void Keep(BufferPtr buffer);  // and drop another if there are many
  void MoveTo(Buffer& buffer, OwnStream& s);
  void FillBuffer(OwnStream& s, BufferPtr buffer, Pattern pattern);
  void ScaleBuffer(OwnStream& s, BufferPtr buffer);
  void MixBuffers(OwnStream& s, BufferPtr to, BufferPtr from);
  void Upload(OwnStream& s, BufferPtr buffer, std::vector<std::shared_ptr<void>>& kept);
  void VerifyInOrder(OwnStream& s, const Buffer& buffer);
  void ReadBack(OwnStream& s, const Buffer& buffer);

  // Operations.
  void Compute();
  void FailTask();
  void SynchronizeOne();
  void QueryOne();
  void AllocateOne();
  void FreeOne();
  void FreeInTask();
  void MoveOne();
  void CopyOne();
  void LookUp();
  void AskTooMuch();
  void EmptyCaches();
  void WaitBetween();
  void LookAtEvent();
  void RecordAgain();
  void WaitInTask();
  void MeasureTime();
  void ExternalPair();
  void RunAlways();
  void RunUnsynchronised();
  void DropStream();
  void VisitRemains();
  void SynchronizeDevice();
  void Post();
  void Collect();
  void CaptureGraph();
  void SpoilCapture();
  void ReplayGraph();
  void UpdateGraph();
  void DropGraph();
  void LaunchShared();
  void SettleShared();
  void PassingThread();

  // Parts of them.
  void SynchronizeDevice(int device);
  void SettleRemains(bool wait);
  void CaptureNodes(Captured& captured, OwnStream& s, OwnStream* side);
  void GroupNodes(Captured& captured, OwnStream& s);
  void Replay(Captured& captured, OwnStream& s);
  void Settle(SharedStream& shared, SharedState& state, int way);
  void Told(SharedStream& shared, SharedState& state, const Error& error);
  bool LaunchOne(SharedStream& shared, SharedState& state);
  void LetGo();

  World& world_;
  const int number_;
  std::mt19937_64 random_;
  std::vector<OwnStream> streams_;
  std::vector<BufferPtr> buffers_;
  std::vector<std::shared_ptr<Captured>> graphs_;
  std::vector<std::shared_ptr<GraphPool>> pools_;
  std::array<SharedState, World::kShared> shared_;
  std::vector<Remains> remains_;
  // Unsynchronised runs whose failure was not yet reported to this thread.
  struct Debt {
    int device;
    Fault failure;
    std::set<uint64_t> joined;  // streams whose work follows it
  };
  std::vector<Debt> debts_;
  Mark again_;  // an event that is recorded repeatedly
  std::unique_ptr<ExternalEvent> external_;
  std::optional<Mark> external_taken_;  // after its last wait

  std::atomic<uint64_t> steps_{0};
  std::atomic<const char*> doing_{"starting"};
  std::vector<uint64_t> counts_;
  std::deque<std::string> trail_;
};

}  // namespace npu::stress
