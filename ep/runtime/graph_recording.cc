#include "ep/runtime/graph_recording.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph_replay.h"

namespace npu {
namespace {

// Guards every recording: captures are rare and short, and their calls come from few threads. Allocators query
// recordings with their own lock held, so neither they nor the backend may be called with this one held.
std::mutex& Mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

// By id of each participating stream.
std::map<uint64_t, std::shared_ptr<Recording>>& OpenRecordings() {
  static auto& open = *new std::map<uint64_t, std::shared_ptr<Recording>>;
  return open;
}

constexpr const char* kIllegal = "operation not permitted when stream is capturing: ";

}  // namespace

std::atomic<int> Recording::open_count_{0};

Recording::Recording(Stream& origin, std::shared_ptr<GraphNodes> nodes, PoolId pool)
    : origin_(origin.id()), nodes_(std::move(nodes)), pool_(pool) {
  clocks_[origin_];
}

Recording* Recording::Find(const Stream& stream) {
  const auto it = OpenRecordings().find(stream.id());
  return it == OpenRecordings().end() ? nullptr : it->second.get();
}

Recording* Recording::FindCapture(const Stream& stream) {
  Recording* recording = Find(stream);
  return recording == nullptr || recording->update_ != nullptr ? nullptr : recording;
}

Recording* Recording::FindRecorded(const Event& event) {
  for (const auto& [id, recording] : OpenRecordings())
    if (recording->events_.count(&event) != 0) return recording.get();
  return nullptr;
}

bool Recording::Captures(const Stream& stream) {
  if (!Any()) return false;
  std::lock_guard lock(Mutex());
  return FindCapture(stream) != nullptr;
}

bool Recording::KeepLaunch(const Stream& stream, const char* op, Task& task, bool of_host) {
  std::lock_guard lock(Mutex());
  Recording* recording = Find(stream);
  if (recording == nullptr) return false;
  if (recording->update_ != nullptr) {
    recording->Replace(op, task);
  } else {
    recording->Add(stream, {.op = op, .task = std::move(task), .of_host = of_host});
  }
  return true;
}

bool Recording::KeepLaunchAlways(const Stream& stream, const char* op, std::function<void(const Status&)>& task) {
  std::lock_guard lock(Mutex());
  Recording* recording = FindCapture(stream);
  if (recording == nullptr) return false;
  recording->Add(stream, {.op = op, .always = std::move(task)});
  recording->nodes_->any_always = true;
  return true;
}

bool Recording::KeepRecord(const Event& event, const Stream& stream) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) recording->events_.erase(&event);
  Recording* recording = FindCapture(stream);
  if (recording == nullptr) return false;
  recording->events_[&event] = recording->clocks_[stream.id()];
  return true;
}

bool Recording::KeepWait(const Stream& stream, const Event& event) {
  for (;;) {
    std::shared_ptr<Recording> joined;
    {
      std::lock_guard lock(Mutex());
      Recording* mine = Find(stream);
      Recording* recording = FindRecorded(event);
      if (recording == nullptr) {
        // An event from outside orders the stream behind earlier work, which a replay could not observe.
        if (mine != nullptr && mine->update_ == nullptr)
          mine->Refuse("it waited for an event that was recorded outside of the capture");
        return false;
      }
      if (mine != nullptr && mine != recording) recording->Refuse("a stream of another capture waited for its event");
      Device& device = stream.device();
      const auto& covered = recording->covered_;
      if (std::find(covered.begin(), covered.end(), &device) != covered.end()) {
        recording->Join(stream, recording->events_.at(&event));
        return true;
      }
      joined = recording->shared_from_this();
    }
    try {
      joined->Cover(stream.device());
    } catch (const std::exception& e) {
      std::lock_guard lock(Mutex());
      joined->Spoil(e.what());
      throw;
    }
  }
}

void Recording::Join(const Stream& stream, const Clock& recorded) {
  Clock& clock = clocks_[stream.id()];
  for (const auto& [other, count] : recorded) {
    clock[other] = std::max(clock[other], count);
    if (other != stream.id() && count > 0) pending_after_[stream.id()].push_back(count - 1);
  }
  OpenRecordings().emplace(stream.id(), shared_from_this());
}

void Recording::Forget(const Event& event) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) recording->events_.erase(&event);
}

bool Recording::Keep(const Stream& stream, std::shared_ptr<const void> object) {
  if (!Any()) return false;
  std::lock_guard lock(Mutex());
  Recording* recording = Find(stream);
  if (recording == nullptr) return false;
  KeptObjects& kept = recording->update_ == nullptr ? recording->nodes_->kept : recording->update_->tasks->kept;
  kept.push_back(std::move(object));
  return true;
}

bool Recording::VisitDraws(const Stream& stream, const std::shared_ptr<RandomSource>& source,
                           const std::function<void(GraphDraws&)>& visit) {
  std::lock_guard lock(Mutex());
  Recording* recording = Find(stream);
  if (recording == nullptr) return false;
  std::lock_guard draws_lock(recording->nodes_->draws_mutex);
  auto& draws = recording->nodes_->draws;
  auto found = std::find_if(draws.begin(), draws.end(), [&](const GraphDraws& d) { return d.source == source; });
  if (found == draws.end()) found = draws.insert(draws.end(), {source, std::make_shared<ReplayOrigin>()});
  visit(*found);
  return true;
}

bool Recording::KeepDraw(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t counters,
                         RandomPosition& position) {
  return Any() && VisitDraws(stream, source, [&](GraphDraws& draws) {
           position = RandomPosition(draws.origin, std::exchange(draws.counters, draws.counters + counters));
         });
}

bool Recording::Drawn(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t& counters) {
  return Any() && VisitDraws(stream, source, [&](const GraphDraws& draws) { counters = draws.counters; });
}

bool Recording::SetDrawn(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t counters) {
  return Any() && VisitDraws(stream, source, [&](GraphDraws& draws) { draws.counters = counters; });
}

void Recording::Check(const Stream& stream, const char* what) {
  if (!Any()) return;
  std::lock_guard lock(Mutex());
  if (Recording* recording = FindCapture(stream)) recording->Refuse(what);
}

void Recording::CheckWaitFor(const Stream& stream, const char* what) {
  std::lock_guard lock(Mutex());
  if (Recording* recording = FindCapture(stream)) recording->Refuse(Concat(what, " of a stream"));
}

void Recording::CheckWaitFor(const Event& event, const char* what) {
  std::lock_guard lock(Mutex());
  if (Recording* recording = FindRecorded(event))
    recording->Refuse(Concat(what, " of an event recorded in the capture"));
}

void Recording::CheckWaitFor(const Device& device, const char* what) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) {
    const auto& covered = recording->covered_;
    if (recording->update_ != nullptr || std::find(covered.begin(), covered.end(), &device) == covered.end()) continue;
    if (recording->mode_ == CaptureMode::kGlobal ||
        (recording->mode_ == CaptureMode::kThreadLocal && recording->thread_ == std::this_thread::get_id()))
      recording->Refuse(Concat(what, " of the device"));
  }
}

std::shared_ptr<Recording> Recording::BeginCapture(Stream& origin, PoolId pool, CaptureMode mode) {
  auto nodes = std::make_shared<GraphNodes>(origin.device().backend(), pool);
  const std::shared_ptr<Recording> recording(new Recording(origin, std::move(nodes), pool));
  recording->mode_ = mode;
  recording->Cover(origin.device());
  recording->Open("expected a stream that is not captured or updated already");
  return recording;
}

void Recording::BeginGroup(const Stream& stream) {
  std::lock_guard lock(Mutex());
  Recording* recording = FindCapture(stream);
  NPU_CHECK(recording != nullptr, "graph_task_group_begin: expected a stream that is capturing");
  NPU_CHECK(recording->open_groups_.try_emplace(stream.id()).second, "a task group is open already: end it first");
}

GraphTaskGroup Recording::EndGroup(const Stream& stream) {
  std::lock_guard lock(Mutex());
  Recording* recording = FindCapture(stream);
  NPU_CHECK(recording != nullptr, "graph_task_group_end: expected a stream that is capturing");
  const auto open = recording->open_groups_.find(stream.id());
  NPU_CHECK(open != recording->open_groups_.end(), "graph_task_group_end was called before graph_task_group_begin");
  GraphNodes& graph = *recording->nodes_;
  auto tasks = std::make_shared<TaskGroup::Tasks>();
  tasks->tasks.resize(open->second.size());
  const size_t index = graph.groups.size();
  TaskGroup& group = graph.groups.emplace_back(
      TaskGroup{.device = &stream.device(), .stream = stream.id(), .nodes = std::move(open->second), .tasks = tasks});
  recording->open_groups_.erase(open);
  for (size_t place = 0; place < group.nodes.size(); ++place) {
    GraphNode& node = graph.nodes[group.nodes[place]];
    tasks->tasks[place] = std::move(node.task);
    node.group = static_cast<std::ptrdiff_t>(index);
    node.place = place;
  }
  return {recording->nodes_, index, group.nodes.size()};
}

void Recording::BeginUpdate(Stream& stream, const GraphTaskGroup& handle) {
  NPU_CHECK(!Captures(stream), "graph_task_update_begin: expected a stream that is not capturing");
  auto nodes = handle.nodes.lock();
  NPU_CHECK(nodes != nullptr, "expected the handle of a task group of a graph that is still there");
  const TaskGroup& group = nodes->groups[handle.index];
  NPU_CHECK(group.device == &stream.device(), "graph_task_update_begin: expected a stream of NPU ",
            group.device->index(), ", where the task group was captured, got one of NPU ", stream.device().index());
  const PoolId pool = nodes->UpdatePool(group).id();
  const std::shared_ptr<Recording> recording(new Recording(stream, std::move(nodes), pool));
  recording->update_ = std::make_unique<Update>(Update{handle.index, 0, std::make_shared<TaskGroup::Tasks>()});
  recording->Cover(stream.device());
  recording->Open(
      "expected a stream without a capture to update a task group, got one that is captured or updated "
      "already");
}

void Recording::EndUpdate(const Stream& stream) {
  std::shared_ptr<Recording> recording;
  {
    std::lock_guard lock(Mutex());
    Recording* found = Find(stream);
    NPU_CHECK(found != nullptr && found->update_ != nullptr,
              "graph_task_update_end was called before graph_task_update_begin");
    recording = found->shared_from_this();
  }
  const auto nodes = recording->End(stream);
  Update& update = *recording->update_;
  std::lock_guard lock(nodes->groups_mutex);
  std::swap(nodes->groups[update.group].tasks, update.tasks);  // the old ones end with the recording, without the lock
}

std::shared_ptr<GraphNodes> Recording::End(const Stream& current) {
  std::shared_ptr<GraphNodes> nodes;
  std::string invalid;
  {
    std::lock_guard lock(Mutex());
    NPU_CHECK(current.id() == origin_, update_ == nullptr ? "Capture must end on the same stream it began on."
                                                          : "Update must end on the same stream it began on.");
    NPU_CHECK(!closed_, "expected a capture that is still open");
    invalid = WhyInvalid();
    nodes = Close();
  }
  Uncover();
  if (!invalid.empty()) Fail(ErrorCode::kInvalidArgument, invalid);
  if (update_ == nullptr) nodes->branches = PlanBranches(nodes->nodes);
  return nodes;
}

void Recording::Abandon() {
  std::shared_ptr<GraphNodes> nodes;
  {
    std::lock_guard lock(Mutex());
    if (closed_) return;
    nodes = Close();
  }
  Uncover();
}

bool Recording::closed() const {
  std::lock_guard lock(Mutex());
  return closed_;
}

void Recording::Cover(Device& device) {
  std::lock_guard cover(cover_mutex_);
  std::shared_ptr<GraphNodes> nodes;
  {
    std::lock_guard lock(Mutex());
    nodes = nodes_;
    if (closed_ || std::find(covered_.begin(), covered_.end(), &device) != covered_.end()) return;
    covered_.reserve(covered_.size() + 1);
  }
  if (update_ == nullptr) nodes->pool.Retain(device);
  device.allocator().BeginPool(pool_, [self = shared_from_this()](const Stream& stream) {
    std::lock_guard lock(Mutex());
    return Find(stream) == self.get();
  });
  std::lock_guard lock(Mutex());
  covered_.push_back(&device);
}

void Recording::Uncover() {
  std::vector<Device*> covered;
  {
    std::lock_guard cover(cover_mutex_);
    covered = covered_;
  }
  for (Device* device : covered) device->allocator().EndPool(pool_);
}

void Recording::Open(const char* expectation) {
  {
    std::lock_guard lock(Mutex());
    if (OpenRecordings().emplace(origin_, shared_from_this()).second) {
      ++open_count_;
      return;
    }
    closed_ = true;
  }
  Uncover();
  Fail(ErrorCode::kInvalidArgument, expectation);
}

std::shared_ptr<GraphNodes> Recording::Close() {
  std::erase_if(OpenRecordings(), [this](const auto& entry) { return entry.second.get() == this; });
  events_.clear();
  closed_ = true;
  --open_count_;
  return std::move(nodes_);
}

void Recording::Add(const Stream& stream, GraphNode node) {
  const uint64_t id = stream.id();
  auto& nodes = nodes_->nodes;
  node.stream = id;
  node.device = stream.device().index();
  node.after = std::exchange(pending_after_[id], {});
  if (const auto last = last_node_.find(id); last != last_node_.end()) node.after.push_back(last->second);
  std::sort(node.after.begin(), node.after.end());
  node.after.erase(std::unique(node.after.begin(), node.after.end()), node.after.end());
  if (const auto group = open_groups_.find(id); group != open_groups_.end() && !node.always)
    group->second.push_back(nodes.size());
  last_node_[id] = nodes.size();
  nodes.push_back(std::move(node));
  clocks_[id][id] = nodes.size();
}

void Recording::Replace(const char* op, Task& task) {
  const std::vector<size_t>& group = nodes_->groups[update_->group].nodes;
  const size_t next = update_->next;
  const char* expected = next < group.size() ? nodes_->nodes[group[next]].op : nullptr;
  if (expected == nullptr || std::strcmp(expected, op) != 0) {
    Spoil(Concat("expected to update ", expected != nullptr ? expected : "no further launch", ", got ", op,
                 "; issue the operators of the task group in their order"));
    Fail(ErrorCode::kInvalidArgument, spoiled_);
  }
  update_->tasks->tasks.push_back(std::move(task));
  ++update_->next;
}

void Recording::Spoil(const std::string& why) {
  if (spoiled_.empty()) spoiled_ = why;
}

void Recording::Refuse(const std::string& why) {
  const std::string message = kIllegal + why;
  Spoil(message);
  Fail(ErrorCode::kInvalidArgument, message);
}

std::string Recording::WhyInvalid() const {
  if (!spoiled_.empty()) return spoiled_;
  if (update_ != nullptr) {
    const size_t missing = nodes_->groups[update_->group].nodes.size() - update_->next;
    return missing == 0 ? "" : Concat("expected ", missing, " more launches to replace those of the task group");
  }
  if (const std::string unjoined = UnjoinedStream(); !unjoined.empty()) return unjoined;
  return open_groups_.empty() ? "" : "capture ended inside a task group: call graph_task_group_end";
}

std::string Recording::UnjoinedStream() const {
  const Clock& joined = clocks_.at(origin_);
  for (const auto& [id, clock] : clocks_) {
    if (id == origin_ || last_node_.count(id) == 0) continue;
    const auto known = joined.find(id);
    if (known == joined.end() || known->second < last_node_.at(id) + 1)
      return Concat("capture has unjoined work: the capturing stream did not wait for stream ", id,
                    ", which joined the capture");
  }
  return {};
}

}  // namespace npu
