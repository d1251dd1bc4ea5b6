#include "ep/runtime/graph_recording.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

// Guards every recording: captures are rare and short, and their calls come from few threads. Never held while the
// allocator or the backend is called.
std::mutex& Mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

// By id of a stream that takes part.
std::map<uint64_t, std::shared_ptr<Recording>>& OpenRecordings() {
  static auto& open = *new std::map<uint64_t, std::shared_ptr<Recording>>;
  return open;
}

constexpr const char* kIllegal = "operation not permitted when stream is capturing: ";

}  // namespace

std::atomic<int> Recording::open_count_{0};

PoolId NewPoolId() {
  static std::atomic<uint64_t> last{0};
  return {++last, 0};
}

GraphNodes::~GraphNodes() {
  if (update_device_ != nullptr) update_device_->allocator().ReleasePool(update_pool_);
}

PoolId GraphNodes::UpdatePool(Device& device) {
  std::lock_guard lock(mutex);
  if (update_device_ == nullptr) {
    update_pool_ = NewPoolId();
    device.allocator().RetainPool(update_pool_);
    update_device_ = &device;
  }
  return update_pool_;
}

std::shared_ptr<Recording> Recording::Of(const Stream& stream) {
  if (!Any()) return nullptr;
  std::lock_guard lock(Mutex());
  const auto it = OpenRecordings().find(stream.id());
  return it == OpenRecordings().end() ? nullptr : it->second;
}

bool Recording::KeepLaunch(const Stream& stream, const char* op, Task& task) {
  const auto recording = Of(stream);
  if (recording == nullptr) return false;
  std::lock_guard lock(Mutex());
  if (recording->updating_) {
    recording->Replace(op, task);
  } else {
    recording->Add(stream, {.op = op, .task = std::move(task)});
  }
  return true;
}

bool Recording::KeepLaunchAlways(const Stream& stream, const char* op, std::function<void(const Status&)>& task) {
  const auto recording = Of(stream);
  if (recording == nullptr || recording->updating_) return false;
  std::lock_guard lock(Mutex());
  recording->Add(stream, {.op = op, .always = std::move(task)});
  return true;
}

bool Recording::KeepRecord(const Event& event, const Stream& stream) {
  Forget(event);
  const auto recording = Of(stream);
  if (recording == nullptr || recording->updating_) return false;
  std::lock_guard lock(Mutex());
  recording->events_[&event] = recording->clocks_[stream.id()];
  return true;
}

bool Recording::KeepWait(const Stream& stream, const Event& event) {
  const auto mine = Of(stream);
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) {
    const auto recorded = recording->events_.find(&event);
    if (recorded == recording->events_.end()) continue;
    if (mine != nullptr && mine != recording) {
      recording->Spoil(Concat(kIllegal, "a stream of another capture waited for its event"));
      Fail(ErrorCode::kInvalidArgument, recording->spoiled_);
    }
    Clock& clock = recording->clocks_[stream.id()];
    for (const auto& [other, count] : recorded->second) {
      clock[other] = std::max(clock[other], count);
      if (other != stream.id() && count > 0) recording->pending_after_[stream.id()].push_back(count - 1);
    }
    if (mine == nullptr) OpenRecordings()[stream.id()] = recording;  // it joins; `id` and its iterator stay valid
    return true;
  }
  // An event from outside says that earlier work must be done first, which a replay could not see.
  if (mine != nullptr && !mine->updating_) {
    mine->Spoil(Concat(kIllegal, "it waited for an event that was recorded outside of the capture"));
    Fail(ErrorCode::kInvalidArgument, mine->spoiled_);
  }
  return false;
}

void Recording::Forget(const Event& event) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) recording->events_.erase(&event);
}

bool Recording::Keep(const Stream& stream, std::shared_ptr<const void> object) {
  if (!Any()) return false;
  std::lock_guard lock(Mutex());
  const auto it = OpenRecordings().find(stream.id());
  if (it == OpenRecordings().end()) return false;
  it->second->nodes_->kept.push_back(std::move(object));
  return true;
}

RandomPosition Recording::KeepDraw(const std::shared_ptr<RandomSource>& source, uint64_t counters) {
  std::lock_guard lock(nodes_->draws_mutex);
  auto& draws = nodes_->draws;
  auto found = std::find_if(draws.begin(), draws.end(), [&](const GraphDraws& d) { return d.source == source; });
  if (found == draws.end()) found = draws.insert(draws.end(), {source, std::make_shared<ReplayOrigin>()});
  const uint64_t before = std::exchange(found->counters, found->counters + counters);
  return RandomPosition(found->origin, before);
}

void Recording::KeepSeed(std::shared_ptr<const RandomPosition> position) {
  std::lock_guard lock(nodes_->draws_mutex);
  nodes_->seeds.push_back(std::move(position));
}

void Recording::CheckWaitFor(const Stream& stream, const char* what) {
  const auto recording = Of(stream);
  if (recording == nullptr || recording->updating_) return;
  std::lock_guard lock(Mutex());
  recording->Spoil(Concat(kIllegal, what, " of a stream"));
  Fail(ErrorCode::kInvalidArgument, recording->spoiled_);
}

void Recording::CheckWaitFor(const Event& event, const char* what) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) {
    if (recording->events_.count(&event) == 0) continue;
    recording->Spoil(Concat(kIllegal, what, " of an event recorded in the capture"));
    Fail(ErrorCode::kInvalidArgument, recording->spoiled_);
  }
}

void Recording::CheckWaitFor(const Device& device, const char* what) {
  std::lock_guard lock(Mutex());
  for (const auto& [id, recording] : OpenRecordings()) {
    if (recording->updating_ || &recording->origin_->device() != &device) continue;
    const bool forbidden =
        recording->mode_ == CaptureMode::kGlobal ||
        (recording->mode_ == CaptureMode::kThreadLocal && recording->thread_ == std::this_thread::get_id());
    if (!forbidden) continue;
    recording->Spoil(Concat(kIllegal, what, " of the device"));
    Fail(ErrorCode::kInvalidArgument, recording->spoiled_);
  }
}

std::shared_ptr<Recording> Recording::BeginCapture(Stream& origin, CaptureMode mode) {
  auto recording = std::make_shared<Recording>();
  recording->thread_ = std::this_thread::get_id();
  recording->mode_ = mode;
  recording->origin_ = &origin;
  recording->nodes_ = std::make_shared<GraphNodes>();
  recording->clocks_[origin.id()];
  std::lock_guard lock(Mutex());
  NPU_CHECK(OpenRecordings().emplace(origin.id(), recording).second,
            "expected a stream that is not captured or updated already");
  ++open_count_;
  return recording;
}

std::shared_ptr<Recording> Recording::BeginUpdate(Stream& stream, const GraphTaskGroup& group) {
  auto recording = std::make_shared<Recording>();
  recording->nodes_ = group.nodes.lock();
  NPU_CHECK(recording->nodes_ != nullptr, "expected the handle of a task group of a graph that is still there");
  recording->thread_ = std::this_thread::get_id();
  recording->origin_ = &stream;
  recording->updating_ = true;
  recording->next_ = group.begin;
  recording->end_ = group.end;
  recording->clocks_[stream.id()];
  recording->update_pool_ = recording->nodes_->UpdatePool(stream.device());
  std::lock_guard lock(Mutex());
  NPU_CHECK(OpenRecordings().emplace(stream.id(), recording).second,
            "expected a stream without a capture to update a task group, got one that is captured or updated already");
  ++open_count_;
  return recording;
}

std::shared_ptr<GraphNodes> Recording::End(const Stream& current) {
  std::lock_guard lock(Mutex());
  NPU_CHECK(&current == origin_, updating_ ? "Update must end on the same stream it began on."
                                           : "Capture must end on the same stream it began on.");
  const std::string unjoined = UnjoinedStream();
  Close();
  if (spoiled_.empty() && !unjoined.empty()) spoiled_ = unjoined;
  if (spoiled_.empty() && group_begin_ >= 0) spoiled_ = "capture ended inside a task group: call graph_task_group_end";
  if (spoiled_.empty() && updating_ && next_ != end_)
    spoiled_ = Concat("expected ", end_ - next_, " more launches to replace those of the task group");
  if (!spoiled_.empty()) Fail(ErrorCode::kInvalidArgument, spoiled_);
  return std::move(nodes_);
}

bool Recording::Contains(const Stream& stream) const {
  std::lock_guard lock(Mutex());
  return clocks_.count(stream.id()) > 0;
}

void Recording::BeginGroup() {
  std::lock_guard lock(Mutex());
  NPU_CHECK(!updating_ && group_begin_ < 0, "a task group is open already: end it first");
  group_begin_ = static_cast<std::ptrdiff_t>(nodes_->nodes.size());
}

GraphTaskGroup Recording::EndGroup() {
  std::lock_guard lock(Mutex());
  NPU_CHECK(group_begin_ >= 0, "graph_task_group_end was called before graph_task_group_begin");
  return {nodes_, static_cast<size_t>(std::exchange(group_begin_, -1)), nodes_->nodes.size()};
}

void Recording::Add(const Stream& stream, GraphNode node) {
  const uint64_t id = stream.id();
  node.stream = id;
  node.after = std::exchange(pending_after_[id], {});
  if (const auto last = last_node_.find(id); last != last_node_.end()) node.after.push_back(last->second);
  std::sort(node.after.begin(), node.after.end());
  node.after.erase(std::unique(node.after.begin(), node.after.end()), node.after.end());
  last_node_[id] = nodes_->nodes.size();
  nodes_->nodes.push_back(std::move(node));
  clocks_[id][id] = nodes_->nodes.size();
}

void Recording::Replace(const char* op, Task& task) {
  std::lock_guard lock(nodes_->mutex);
  const bool same = next_ < end_ && std::strcmp(nodes_->nodes[next_].op, op) == 0;
  if (!same) {
    Spoil(Concat("expected to update ", next_ < end_ ? nodes_->nodes[next_].op : "no further launch", ", got ", op,
                 "; issue the operators of the task group in their order"));
    Fail(ErrorCode::kInvalidArgument, spoiled_);
  }
  // The old task is destroyed by the caller, without the locks: it may own anything.
  Task old = std::exchange(nodes_->nodes[next_++].task, std::move(task));
  task = std::move(old);
}

void Recording::Spoil(const std::string& why) {
  if (spoiled_.empty()) spoiled_ = why;
}

void Recording::Close() {
  std::erase_if(OpenRecordings(), [this](const auto& entry) { return entry.second.get() == this; });
  events_.clear();
  closed_ = true;
  --open_count_;
}

void Recording::Abandon() {
  std::lock_guard lock(Mutex());
  if (!closed_) Close();
}

bool Recording::closed() const {
  std::lock_guard lock(Mutex());
  return closed_;
}

std::string Recording::UnjoinedStream() const {
  if (updating_) return {};
  const Clock& joined = clocks_.at(origin_->id());
  for (const auto& [id, clock] : clocks_) {
    if (id == origin_->id() || last_node_.count(id) == 0) continue;
    const auto known = joined.find(id);
    if (known == joined.end() || known->second < last_node_.at(id) + 1)
      return Concat("capture has unjoined work: the capturing stream did not wait for stream ", id,
                    ", which joined the capture");
  }
  return {};
}

}  // namespace npu
