#include "ep/runtime/mpi/mpi_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "ep/runtime/error.h"
#include "ep/runtime/mpi/mpi_library.h"
#include "ep/runtime/mpi/mpi_roll_call.h"
#include "ep/runtime/mpi/mpi_searches.h"

namespace npu {
namespace {

using Clock = std::chrono::steady_clock;

// MPI makes progress only while it is called. The first calls follow each other, because a message among processes of
// one machine takes microseconds; then the processor is left to the ranks' other work.
constexpr int kEagerTests = 200;
constexpr std::chrono::microseconds kPause{50};

// Set once a group was lost: to finalize MPI is to wait for all ranks, and some of them no longer answer.
std::atomic<bool> rank_missing{false};

class TestPause {
 public:
  // Whether the processor was left to others.
  bool operator()() {
    if (++tests_ < kEagerTests) {
      std::this_thread::yield();
      return false;
    }
    std::this_thread::sleep_for(kPause);
    return true;
  }

 private:
  int tests_ = 0;
};

// Time in which this process ran: one that was stopped has not waited.
class Waited {
 public:
  std::chrono::milliseconds operator()() {
    const Clock::time_point now = Clock::now();
    time_ += std::min<Clock::duration>(now - read_, kLongestPause);
    read_ = now;
    return std::chrono::duration_cast<std::chrono::milliseconds>(time_);
  }

 private:
  static constexpr std::chrono::milliseconds kLongestPause{100};
  Clock::time_point read_ = Clock::now();
  Clock::duration time_{0};
};

// Messages between two ranks keep their order, so one tag for exchanges, one for reports and one for searches suffice.
// They depend on nothing but the group, so that the ranks need not agree on them.
constexpr int kTags = 3;

int TagOf(const std::string& name, const std::vector<int>& members) {
  uint64_t hash = 14695981039346656037u;
  for (const char byte : name) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  for (const int rank : members) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211u;
  return kTags * static_cast<int>(hash % ((mpi::kGreatestTag + 1) / kTags));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const MpiLibrary& mpi, MpiHandle world, std::string name, std::vector<int> members, int rank, int tag,
                  std::chrono::milliseconds timeout)
      : Communicator(std::move(name), rank, static_cast<int>(members.size())),
        mpi_(mpi),
        world_(world),
        members_(std::move(members)),
        tag_(tag),
        timeout_(timeout),
        roll_call_(mpi, world, members_, static_cast<size_t>(rank), tag + 1),
        searches_(mpi, world, members_, static_cast<size_t>(rank), tag + 2) {}

  std::chrono::milliseconds Timeout() override { return timeout_; }
  // By the first message of the call.
  bool IsAwaited() override {
    for (const int member : members_) {
      int there = 0;
      if (member != members_[static_cast<size_t>(rank())])
        mpi_.Check(mpi_.Iprobe(member, tag_, world_, &there, nullptr), "a query");
      if (there != 0) return true;
    }
    return false;
  }
  void TellSearch(bool searching) override { searches_.Tell(searching); }
  bool OthersSearch() override { return searches_.AllOthers(); }

 private:
  void GatherBytes(const void* sent, void* received, size_t bytes) override {
    const std::vector<size_t> each(members_.size(), bytes), nowhere(members_.size(), 0);
    Run(sent, each, nowhere, received, each);
  }

  void ExchangeBytes(const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                     const std::vector<size_t>& received_bytes) override {
    std::vector<size_t> begins(members_.size(), 0);
    std::exclusive_scan(sent_bytes.begin(), sent_bytes.end(), begins.begin(), size_t{0});
    Run(sent, sent_bytes, begins, received, received_bytes);
  }

  // What is sent to rank r begins at begins[r]. MPI sees copies: if a rank is missing, it keeps its buffers.
  void Run(const void* sent, const std::vector<size_t>& sent_bytes, const std::vector<size_t>& begins, void* received,
           const std::vector<size_t>& received_bytes) {
    const size_t ranks = members_.size(), self = static_cast<size_t>(rank());
    size_t out = 0;
    for (size_t r = 0; r < ranks; ++r) out = std::max(out, begins[r] + sent_bytes[r]);
    const size_t in = std::accumulate(received_bytes.begin(), received_bytes.end(), size_t{0});
    if (sent_.size() < out) sent_.resize(out);
    if (received_.size() < in) received_.resize(in);
    if (out > 0) std::memcpy(sent_.data(), sent, out);

    requests_.assign(2 * ranks, mpi::kNoRequest);
    try {
      size_t begin = 0;
      for (size_t r = 0; r < ranks; begin += received_bytes[r++]) {
        if (r == self || received_bytes[r] == 0) continue;
        mpi_.Check(mpi_.Irecv(received_.data() + begin, static_cast<MpiCount>(received_bytes[r]), mpi::kByte,
                              members_[r], tag_, world_, &requests_[r]),
                   "a receipt");
      }
      for (size_t r = 0; r < ranks; ++r) {
        if (r == self || sent_bytes[r] == 0) continue;
        mpi_.Check(mpi_.Isend(sent_.data() + begins[r], static_cast<MpiCount>(sent_bytes[r]), mpi::kByte, members_[r],
                              tag_, world_, &requests_[ranks + r]),
                   "a send");
      }
      Wait();
    } catch (...) {
      Abandon();
      throw;
    }
    const size_t mine = std::accumulate(received_bytes.begin(), received_bytes.begin() + rank(), size_t{0});
    if (sent_bytes[self] > 0) std::memcpy(received_.data() + mine, sent_.data() + begins[self], sent_bytes[self]);
    if (in > 0) std::memcpy(received, received_.data(), in);
  }

  void Wait() {
    Waited waited;
    TestPause pause;
    const std::chrono::milliseconds for_reports = TimeForReports(timeout_);
    while (!AllDone()) {
      const bool given_up = pause() && roll_call_.Begun();
      if (const std::chrono::milliseconds time = waited(); given_up || time > timeout_ - for_reports)
        Fail(ErrorCode::kDeviceError,
             given_up ? "another rank has given up" : Concat("no answer within ", timeout_.count(), " ms"),
             DescribeFailure(roll_call_.Complete(time, for_reports)));
    }
  }

  bool AllDone() {
    bool all = true;
    for (MpiHandle& request : requests_) {
      if (request == mpi::kNoRequest) continue;
      int done = 0;
      mpi_.Check(mpi_.Test(&request, &done, nullptr), "an exchange");
      all = all && done != 0;
    }
    return all;
  }

  // MPI may still write to the buffers of requests that have not ended, so they are never freed.
  void Abandon() {
    rank_missing.store(true);
    static auto& abandoned = *new std::vector<std::vector<char>>;
    static auto& mutex = *new std::mutex;
    const std::lock_guard lock(mutex);
    abandoned.push_back(std::move(sent_));
    abandoned.push_back(std::move(received_));
  }

  const MpiLibrary& mpi_;
  const MpiHandle world_;
  const std::vector<int> members_;
  const int tag_;
  const std::chrono::milliseconds timeout_;
  std::vector<char> sent_, received_;
  std::vector<MpiHandle> requests_;  // receipts, then sends
  MpiRollCall roll_call_;
  MpiSearches searches_;
};

}  // namespace

struct MpiWorld::State {
  struct Group {
    std::vector<int> members;
    int tag = 0;
    std::shared_ptr<Communicator> communicator;  // until the process ends: its messages may still be under way
  };

  explicit State(const std::string& library) : mpi(library) {}

  MpiLibrary mpi;
  MpiHandle world = mpi::kNoCommunicator;  // a duplicate, on which no other messages travel
  int rank = 0, size = 0;
  std::mutex mutex;
  std::map<std::string, Group> groups;
};

MpiWorld::MpiWorld(std::unique_ptr<State> state) : state_(std::move(state)) {}

namespace {

// Only of MPI that this process has initialized here.
void FinalizeAtExit(const MpiLibrary& library) {
  static const MpiLibrary* mpi = nullptr;
  mpi = &library;
  std::atexit([] {
    int finalized = 0;
    if (!rank_missing.load() && mpi->Finalized(&finalized) == mpi::kSuccess && finalized == 0) mpi->Finalize();
  });
}

void InitializeMpi(MpiLibrary& mpi) {
  int initialized = 0, threads = 0;
  mpi.Check(mpi.Initialized(&initialized), "a query");
  if (initialized != 0) {
    mpi.Check(mpi.QueryThread(&threads), "a query");
  } else {
    mpi.Check(mpi.InitThread(nullptr, nullptr, mpi::kThreadMultiple, &threads), "the initialization");
    mpi.Check(mpi.CommSetErrhandler(mpi::kWorld, mpi::kErrorsReturn), "the initialization");
    FinalizeAtExit(mpi);
  }
  if (threads != mpi::kThreadMultiple)
    Fail(ErrorCode::kUnsupported, "expected MPI initialized with MPI_THREAD_MULTIPLE, got level ", threads,
         "; let this library initialize it, or ask for that level");
}

void Duplicate(MpiWorld::State& state, std::chrono::milliseconds timeout) {
  MpiHandle request = mpi::kNoRequest;
  state.mpi.Check(state.mpi.CommIdup(mpi::kWorld, &state.world, &request), "the start of the ranks");
  const Clock::time_point deadline = Clock::now() + timeout;
  TestPause pause;
  for (int done = 0; done == 0;) {
    state.mpi.Check(state.mpi.Test(&request, &done, nullptr), "the start of the ranks");
    if (done == 0 && Clock::now() > deadline) {
      rank_missing.store(true);
      Fail(ErrorCode::kDeviceError, "expected ", state.size, " ranks to make a session with MPI within ",
           timeout.count(), " ms, some have not");
    }
    if (done == 0) pause();
  }
  state.mpi.Check(state.mpi.CommSetErrhandler(state.world, mpi::kErrorsReturn), "the start of the ranks");
}

}  // namespace

MpiWorld& MpiWorld::Join(const std::string& library, std::chrono::milliseconds timeout) {
  static auto& mutex = *new std::mutex;
  static MpiWorld* world = nullptr;
  const std::lock_guard lock(mutex);
  if (world == nullptr) {
    // Never destroyed: the library cannot be initialized twice, and an exchange given up after an error goes on.
    static State* state = nullptr;
    if (state == nullptr) state = new State(library);
    InitializeMpi(state->mpi);
    state->mpi.Check(state->mpi.CommRank(mpi::kWorld, &state->rank), "a query");
    state->mpi.Check(state->mpi.CommSize(mpi::kWorld, &state->size), "a query");
    Duplicate(*state, timeout);
    world = new MpiWorld(std::unique_ptr<State>(state));
  }
  return *world;
}

int MpiWorld::rank() const { return state_->rank; }
int MpiWorld::size() const { return state_->size; }

std::shared_ptr<Communicator> MpiWorld::Group(const std::string& name, const std::vector<int>& members,
                                              std::chrono::milliseconds timeout) {
  const std::lock_guard lock(state_->mutex);
  const auto self = std::find(members.begin(), members.end(), state_->rank);
  NPU_CHECK(self != members.end(), "expected a group with rank ", state_->rank, ", got '", Printable(name),
            "' without it");
  State::Group& facts = state_->groups[name];
  if (facts.communicator != nullptr) {
    NPU_CHECK(facts.members == members, "expected the group '", Printable(name),
              "' with the ranks that it has in another session, got others");
    return facts.communicator;
  }
  const int tag = TagOf(name, members);
  for (const auto& [other, of_other] : state_->groups)
    NPU_CHECK(other == name || of_other.communicator == nullptr || of_other.tag != tag,
              "expected names of groups with ", "different numbers, got '", Printable(name), "' and '",
              Printable(other), "'; rename one of them");
  auto made = std::make_shared<MpiCommunicator>(state_->mpi, state_->world, name, members,
                                                static_cast<int>(self - members.begin()), tag, timeout);
  facts = {members, tag, made};
  Communicators::Add(made);
  return made;
}

}  // namespace npu
