#include "ep/runtime/graph.h"

#include <exception>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/external_event.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/log.h"

namespace npu {
namespace {

using ReplayDraws = std::vector<std::pair<std::shared_ptr<ReplayOrigin>, PhiloxState>>;

// What the graph draws is taken out of its generators now, as the work itself would have done.
ReplayDraws TakeDraws(GraphNodes& graph) {
  std::lock_guard lock(graph.draws_mutex);
  ReplayDraws taken;
  for (const GraphDraws& draws : graph.draws) taken.emplace_back(draws.origin, draws.source->Take(draws.counters));
  return taken;
}

void Run(GraphNodes& graph, const ReplayDraws& draws) {
  std::lock_guard replay(graph.replay_mutex);
  for (const auto& [origin, state] : draws) origin->Set(state);
  Status failed;
  for (GraphNode& node : graph.nodes) {
    if (failed != nullptr && !node.always) continue;
    std::unique_lock lock(graph.mutex, std::defer_lock);
    if (node.op != ExternalEvent::kWaitOp) lock.lock();  // an update may have to come before what is waited for
    const LaunchTrace::Part part(node.op);
    try {
      node.always ? node.always(failed) : node.task();
    } catch (const FailedBefore& e) {
      failed = e.status();
    } catch (const std::exception& e) {
      const std::string prefix = Concat("[", node.op, "] "), message = e.what();
      failed = MakeFailure("[graph] " + (message.starts_with(prefix) ? message : prefix + message));
    }
  }
  ThrowIfFailed(failed);
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
  NPU_CHECK(recording_ == nullptr && nodes_ == nullptr,
            "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
  Device& device = stream.device();
  NPU_CHECK(&stream != &device.default_stream(),
            "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
            "the default stream.)");
  const PoolId chosen = pool == PoolId{} ? NewPoolId() : pool;
  auto recording = Recording::BeginCapture(stream, mode);
  device.allocator().RetainPool(chosen);  // the graph's own hold, beside that of the capture
  device.allocator().BeginPool(chosen, [recording](const Stream& s) { return recording->Contains(s); });
  recording_ = std::move(recording);
  device_ = &device;
  pool_ = chosen;
}

void Graph::CaptureEnd(Stream& current) {
  NPU_CHECK(recording_ != nullptr, "capture_end() called before capture_begin().");
  try {
    nodes_ = recording_->End(current);
  } catch (const Error&) {
    if (recording_->closed()) Reset();
    throw;
  }
  recording_.reset();
  device_->allocator().EndPool(pool_);
}

void Graph::Replay(Stream& stream) {
  NPU_CHECK(nodes_ != nullptr, "Called NPUGraph::replay without a preceding successful capture.");
  NPU_CHECK(&stream.device() == device_, "expected a stream of NPU ", device_->index(),
            ", where the graph was captured");
  NPU_CHECK(!IsCapturing(stream),
            "expected a stream that is not capturing: a graph cannot hold another graph's replay");
  stream.Launch("graph", Task([nodes = nodes_, draws = TakeDraws(*nodes_)] { Run(*nodes, draws); }));
  auto& replayed = replayed_[stream.id()];
  if (replayed == nullptr) replayed = std::make_unique<Event>(device_->backend());
  replayed->Record(stream);
}

void Graph::Reset() {
  if (recording_ != nullptr) {
    const auto recording = std::move(recording_);
    recording->Abandon();
    device_->allocator().EndPool(pool_);
    device_->allocator().ReleasePool(pool_);
  }
  if (nodes_ == nullptr) return;
  for (const auto& [stream, replayed] : replayed_) replayed->Synchronize();  // replays need the pool's memory
  replayed_.clear();
  nodes_.reset();
  device_->allocator().ReleasePool(pool_);
}

PoolId Graph::pool() const {
  NPU_CHECK(nodes_ != nullptr, "Called NPUGraph::pool() without a preceding successful capture.");
  return pool_;
}

size_t Graph::size() const { return nodes_ == nullptr ? 0 : nodes_->nodes.size(); }

std::string Graph::Json() const {
  std::string out = Concat("{\"device\": ", device_ == nullptr ? 0 : device_->index(), ", \"pool\": [", pool_.first,
                           ", ", pool_.second, "], \"nodes\": [");
  for (size_t i = 0; i < size(); ++i) {
    const GraphNode& node = nodes_->nodes[i];
    out += Concat(i == 0 ? "" : ", ", "{\"id\": ", i, ", \"op\": ", JsonString(node.op), ", \"stream\": ", node.stream,
                  ", \"after\": [");
    for (size_t k = 0; k < node.after.size(); ++k) out += Concat(k == 0 ? "" : ", ", node.after[k]);
    out += "]}";
  }
  return out + "]}";
}

bool Graph::IsCapturing(const Stream& stream) {
  const auto recording = Recording::Of(stream);
  return recording != nullptr && !recording->updates();
}

void Graph::BeginGroup(Stream& stream) {
  NPU_CHECK(IsCapturing(stream), "graph_task_group_begin: expected a stream that is capturing");
  Recording::Of(stream)->BeginGroup();
}

GraphTaskGroup Graph::EndGroup(Stream& stream) {
  NPU_CHECK(IsCapturing(stream), "graph_task_group_end: expected a stream that is capturing");
  return Recording::Of(stream)->EndGroup();
}

void Graph::BeginUpdate(Stream& stream, const GraphTaskGroup& group) {
  NPU_CHECK(!IsCapturing(stream), "graph_task_update_begin: expected a stream that is not capturing");
  const auto recording = Recording::BeginUpdate(stream, group);
  stream.device().allocator().BeginPool(recording->update_pool(),
                                        [recording](const Stream& s) { return recording->Contains(s); });
}

void Graph::EndUpdate(Stream& stream) {
  const auto recording = Recording::Of(stream);
  NPU_CHECK(recording != nullptr && recording->updates(),
            "graph_task_update_end was called before graph_task_update_begin");
  try {
    recording->End(stream);
  } catch (const Error&) {
    if (recording->closed()) stream.device().allocator().EndPool(recording->update_pool());
    throw;
  }
  stream.device().allocator().EndPool(recording->update_pool());
}

}  // namespace npu
