#include "ep/runtime/graph.h"

#include <exception>
#include <utility>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/graph_replay.h"
#include "ep/runtime/log.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

constexpr const char* kOwnsAlready =
    "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance.";

void LaunchReplay(const std::shared_ptr<GraphNodes>& nodes, Stream& stream) {
  const auto ran = nodes->any_always ? std::make_shared<bool>(false) : nullptr;
  stream.LaunchHost("graph", Task([nodes, ran, draws = TakeDraws(*nodes)] {
                      if (ran != nullptr) *ran = true;
                      RunReplay(*nodes, draws);
                    }));
  if (ran == nullptr) return;
  // For a stream that had failed and so skipped the replay. Another thread may have resumed it meanwhile.
  stream.LaunchAlways("graph", [nodes, ran](const Status& status) {
    if (*ran) return;
    SkipReplay(*nodes, status != nullptr ? status : MakeFailure("[graph] skipped behind failed work of its stream"));
  });
}

}  // namespace

CaptureMode ParseCaptureMode(const std::string& name) {
  if (name == "global") return CaptureMode::kGlobal;
  if (name == "thread_local") return CaptureMode::kThreadLocal;
  NPU_CHECK(name == "relaxed", "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ",
            name);
  return CaptureMode::kRelaxed;
}

Graph::~Graph() {
  try {
    Reset();
  } catch (const std::exception& e) {
    NPU_LOG(kError, "graph: ", e.what());
  }
}

void Graph::CaptureBegin(Stream& stream, PoolId pool, CaptureMode mode) {
  std::lock_guard lock(mutex_);
  NPU_CHECK(recording_ == nullptr && nodes_ == nullptr, kOwnsAlready);
  NPU_CHECK(&stream != &stream.device().default_stream(),
            "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
            "the default stream.)");
  recording_ = Recording::BeginCapture(stream, pool == PoolId{} ? NewPoolId() : pool, mode);
  device_ = &stream.device();
}

void Graph::CaptureEnd(Stream& current) {
  std::shared_ptr<Recording> recording;
  {
    std::lock_guard lock(mutex_);
    recording = recording_;
  }
  NPU_CHECK(recording != nullptr, "capture_end() called before capture_begin().");
  std::shared_ptr<GraphNodes> nodes;
  try {
    nodes = recording->End(current);
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (recording->closed() && recording_ == recording) recording_.reset();
    throw;
  }
  std::lock_guard lock(mutex_);
  recording_.reset();
  nodes_ = std::move(nodes);
}

void Graph::Replay(Stream& stream) {
  const std::shared_ptr<GraphNodes> nodes = this->nodes();
  NPU_CHECK(nodes != nullptr, "Called NPUGraph::replay without a preceding successful capture.");
  NPU_CHECK(&stream.device() == device_, "expected a stream of NPU ", device_->index(),
            ", where the graph was captured");
  NPU_CHECK(!IsCapturing(stream),
            "expected a stream that is not capturing: a graph cannot hold another graph's replay");
  Backend& backend = nodes->backend;
  PrepareReplay(*nodes);
  BackendEvent* passed = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = replayed_.find(stream.id()); found != replayed_.end())
      passed = replayed_.extract(found).mapped();
  }
  if (passed == nullptr) passed = backend.CreateEvent(/*timing=*/false);
  try {
    LaunchReplay(nodes, stream);
    backend.EventRecord(passed, stream.handle());
    std::lock_guard lock(mutex_);
    // Destroys the events of finished replays, whose streams may no longer exist.
    if (replayed_.count(stream.id()) == 0)
      std::erase_if(replayed_, [&](const auto& entry) {
        if (!backend.EventQuery(entry.second)) return false;
        backend.DestroyEvent(entry.second);
        return true;
      });
    if (nodes_ == nodes && replayed_.try_emplace(stream.id(), passed).second) return;
  } catch (...) {
    backend.DestroyEvent(passed);
    throw;
  }
  // The graph was reset meanwhile, or two threads replay it on this stream; the launch keeps the nodes.
  backend.DestroyEvent(passed);
}

void Graph::Reset() {
  std::shared_ptr<Recording> recording;
  std::shared_ptr<GraphNodes> nodes;
  std::vector<BackendEvent*> replayed;
  {
    std::lock_guard lock(mutex_);
    recording = std::move(recording_);
    nodes = std::move(nodes_);
    for (const auto& [stream, event] : replayed_) replayed.push_back(event);
    replayed_.clear();
  }
  if (InForkedChild()) {  // the locks and threads that the nodes need exist only in the parent
    [[maybe_unused]] auto* leaked = new std::pair(std::move(recording), std::move(nodes));
    return;
  }
  if (recording != nullptr) recording->Abandon();
  if (nodes == nullptr) return;
  Backend& backend = nodes->backend;
  Retire(backend, std::move(replayed), [nodes = std::move(nodes)]() mutable { nodes.reset(); });
}

std::shared_ptr<GraphNodes> Graph::nodes() const {
  std::lock_guard lock(mutex_);
  return nodes_;
}

PoolId Graph::pool() const {
  const auto nodes = this->nodes();
  NPU_CHECK(nodes != nullptr, "Called NPUGraph::pool() without a preceding successful capture.");
  return nodes->pool.id();
}

size_t Graph::size() const {
  const auto nodes = this->nodes();
  return nodes == nullptr ? 0 : nodes->nodes.size();
}

std::string Graph::Json() const {
  const auto nodes = this->nodes();
  const PoolId pool = nodes == nullptr ? PoolId{} : nodes->pool.id();
  std::string out = Concat("{\"device\": ", device_ == nullptr ? 0 : device_->index(), ", \"pool\": [", pool.first,
                           ", ", pool.second, "], \"nodes\": [");
  for (size_t i = 0; nodes != nullptr && i < nodes->nodes.size(); ++i) {
    const GraphNode& node = nodes->nodes[i];
    out += Concat(i == 0 ? "" : ", ", "{\"id\": ", i, ", \"op\": ", JsonString(node.op), ", \"stream\": ", node.stream,
                  ", \"after\": [");
    for (size_t k = 0; k < node.after.size(); ++k) out += Concat(k == 0 ? "" : ", ", node.after[k]);
    out += "]}";
  }
  return out + "]}";
}

bool Graph::IsCapturing(const Stream& stream) { return Recording::Captures(stream); }

void Graph::RefuseInCapture(const Stream& stream, const char* what) { Recording::Check(stream, what); }

void Graph::BeginGroup(Stream& stream) { Recording::BeginGroup(stream); }

GraphTaskGroup Graph::EndGroup(Stream& stream) { return Recording::EndGroup(stream); }

void Graph::BeginUpdate(Stream& stream, const GraphTaskGroup& group) { Recording::BeginUpdate(stream, group); }

void Graph::EndUpdate(Stream& stream) { Recording::EndUpdate(stream); }

}  // namespace npu
