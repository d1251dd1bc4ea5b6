#include "ep/provider/ep.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "ep/provider/context/context_reader.h"
#include "ep/provider/context/context_writer.h"
#include "ep/provider/factory.h"
#include "ep/provider/fusion/fused_kernel.h"
#include "ep/provider/logging.h"
#include "ep/provider/partition.h"
#include "ep/provider/session_groups.h"
#include "ep/provider/sync_stream.h"
#include "ep/runtime/log.h"
#include "ep/runtime/packed_blocks.h"

namespace npu::provider {
namespace {

// A run option that the package sets for run_async: see SessionRuns::Begin.
constexpr char kCallerKey[] = "npu.caller_stream";

thread_local bool capturing = false;
thread_local std::shared_ptr<const AssignmentLog> captured;

class Ep final : public OrtEp {
 public:
  Ep(Factory& factory, const Options& options, const OrtLogger* logger)
      : OrtEp{},
        factory_(factory),
        api_(factory.api()),
        device_(factory.device(options.device_id)),
        options_(options),
        logger_(logger),
        stamp_(StampOf(device_.device().backend())),
        stamp_text_(stamp_.Text()),
        log_(std::make_shared<AssignmentLog>()),
        constants_(std::make_shared<SharedConstants>(device_)),
        runs_(std::make_shared<SessionRuns>(device_, options.compute_stream, /*blocking=*/options.host_memory)),
        graphs_(options.graphs ? std::make_shared<SessionGraphs>(device_, runs_) : nullptr),
        groups_(MakeGroups(options)) {
    ort_version_supported = ORT_API_VERSION;
    GetName = [](const OrtEp*) noexcept { return kEpName; };
    GetCapability = &GetCapabilityImpl;
    GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** out) noexcept {
      auto& me = *static_cast<Ep*>(self);
      *out = nullptr;
      return Guard(me.api_.ort, [&] { *out = me.factory_.kernel_registry(me.placement()); });
    };
    IsConcurrentRunSupported = [](OrtEp* self, bool* supported) noexcept -> OrtStatus* {
      *supported = static_cast<Ep*>(self)->graphs_ == nullptr;
      return nullptr;
    };
    Sync = [](OrtEp* self) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.runs_->Wait(); });
    };
    OnRunStart = [](OrtEp* self, const OrtRunOptions* run) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.BeginRun(run); });
    };
    OnRunEnd = [](OrtEp* self, const OrtRunOptions*, bool synchronize) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.EndRun(synchronize); });
    };
    CreateSyncStreamForDevice = [](OrtEp* self, const OrtMemoryDevice*, OrtSyncStreamImpl** out) noexcept {
      auto& me = *static_cast<Ep*>(self);
      *out = nullptr;
      return Guard(me.api_.ort, [&] { *out = NewSessionStream(me.api_, me.runs_, me.graphs_); });
    };
    Compile = &CompileImpl;
    GetCompiledModelCompatibilityInfo = [](OrtEp* self, const OrtGraph*) noexcept -> const char* {
      return static_cast<Ep*>(self)->stamp_text_.c_str();
    };
    ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) noexcept {
      for (size_t i = 0; i < count; ++i) ReleaseFusedKernel(infos[i]);
    };
    if (graphs_ != nullptr) SetGraphFunctions();
    OnSessionInitializationEnd = [](OrtEp* self) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] {
        me.CheckDecisions();
        // Packing has left free memory behind, which runs can use.
        me.device_.ShareFreeBlocks();
      });
    };
    if (capturing) captured = log_;
  }

  DeviceState& device() const { return device_; }
  const Options& options() const { return options_; }
  const std::shared_ptr<SharedConstants>& constants() const { return constants_; }
  const std::shared_ptr<SessionRuns>& runs() const { return runs_; }
  const std::shared_ptr<SessionGraphs>& graphs() const { return graphs_; }

 private:
  // Calls `work` and ends this thread's run, even if `work` throws. Not a destructor, because the end may throw, too.
  template <class F>
  void ThenEnd(F&& work) {
    try {
      work();
    } catch (...) {
      CancelRun();
      throw;
    }
    runs_->End();
  }

  // The first failure is already being reported.
  void CancelRun() noexcept {
    try {
      runs_->End();
    } catch (const std::exception& error) {
      NPU_LOG(kError, "the end of a run that failed: ", error.what());
    }
  }

  ValuePlacement placement() const {
    if (options_.host_memory) return ValuePlacement::kHost;
    return options_.graphs ? ValuePlacement::kReplay : ValuePlacement::kDevice;
  }

  void SetGraphFunctions() {
    IsGraphCaptureEnabled = [](const OrtEp*) noexcept { return true; };
    GetGraphCaptureNodeAssignmentPolicy = [](const OrtEp*) noexcept {
      return OrtGraphCaptureNodeAssignmentPolicy_ALLOW_CPU_FOR_SHAPES;
    };
    IsGraphCaptured = [](const OrtEp* self, int id) noexcept {
      return static_cast<const Ep*>(self)->graphs_->Captured(id);
    };
    ReplayGraph = [](OrtEp* self, int id) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] {
        // Onnxruntime calls no other function for such a run.
        me.runs_->Begin();
        me.ThenEnd([&] { me.graphs_->Replay(id); });
      });
    };
    ReleaseCapturedGraph = [](OrtEp* self, int id) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.graphs_->Release(id); });
    };
  }

  void BeginRun(const OrtRunOptions* run) {
    const auto entry = [&](const char* key) {
      const char* text = run == nullptr ? nullptr : api_.ort.GetRunConfigEntry(run, key);
      return std::string(text == nullptr ? "" : text);
    };
    const std::string text = entry("user_compute_stream");
    uintptr_t stream = 0;
    NPU_CHECK(
        text.empty() || ParseStreamHandle(text, stream),
        "NPUExecutionProvider: run option 'user_compute_stream' expected the handle of a stream of the NPU, or 0; "
        "got '",
        text, "'");
    NPU_CHECK(
        graphs_ == nullptr || stream == 0 || GraphOf(run) == SessionGraphs::kNoGraph,
        "NPUExecutionProvider: run option 'user_compute_stream' expected a session without enable_npu_graph: "
        "onnxruntime hands no run options to a replay; set the provider option of that name, or gpu_graph_id to -1");
    runs_->Begin(stream, entry(kCallerKey));
    if (graphs_ == nullptr) return;
    try {
      graphs_->BeginRun(GraphOf(run));
    } catch (...) {
      CancelRun();  // onnxruntime does not end a run that failed to begin
      throw;
    }
  }

  void EndRun(bool synchronize) {
    ThenEnd([&] {
      if (graphs_ != nullptr) graphs_->EndRun();
      // Onnxruntime flushes the streams of a run that succeeded only: what one that failed on the host has enqueued
      // must not fail the next one. Onnxruntime keeps the first failure.
      if (synchronize) runs_->Settle();
    });
  }

  // Onnxruntime itself reads this key, too, and defaults to 0.
  int GraphOf(const OrtRunOptions* run) const {
    const char* text = run == nullptr ? nullptr : api_.ort.GetRunConfigEntry(run, "gpu_graph_id");
    int id = 0;
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), id);
    return id;
  }

  static OrtStatus* ORT_API_CALL GetCapabilityImpl(OrtEp* self, const OrtGraph* graph,
                                                   OrtEpGraphSupportInfo* support) noexcept {
    auto& me = *static_cast<Ep*>(self);
    return Guard(me.api_.ort, [&] {
      try {
        ClaimNodes(me.api_, graph, support, me.options_, me.device_, *me.log_, *me.constants_, me.channels_last_);
        if (!me.options_.shapes_on_cpu) me.WarnOfRefused();
      } catch (const std::exception& error) {
        me.log_->Fail(error.what());
        throw;
      }
    });
  }

  static OrtStatus* ORT_API_CALL CompileImpl(OrtEp* self, const OrtGraph** graphs, const OrtNode** nodes, size_t count,
                                             OrtNodeComputeInfo** infos, OrtNode** contexts) noexcept {
    auto& me = *static_cast<Ep*>(self);
    std::fill_n(infos, count, nullptr);
    OrtStatus* failed = Guard(me.api_.ort, [&] {
      if (count != 0) me.CompileGroups({graphs, count}, nodes, infos, contexts);
    });
    if (failed != nullptr) {
      for (size_t i = 0; i < count; ++i) ReleaseFusedKernel(std::exchange(infos[i], nullptr));
    }
    return failed;
  }

  // Creates the kernels of fused nodes, and for a compiled model that is being stored their EPContext nodes.
  void CompileGroups(std::span<const OrtGraph* const> graphs, const OrtNode* const* nodes, OrtNodeComputeInfo** infos,
                     OrtNode** contexts) {
    const std::string model = ModelPath(graphs[0]);
    std::optional<ContextWriter> writer;
    if (options_.compile) writer.emplace(api_, options_, stamp_, model);
    const std::string& beside = model.empty() ? options_.context_path : model;
    ContextReader reader(stamp_, std::filesystem::path(beside).parent_path());
    for (size_t i = 0; i < graphs.size(); ++i) {
      std::vector<GraphNode> group;
      for (const OrtNode* node : NodesOf(api_, graphs[i])) group.push_back(ReadNode(api_, node));
      const std::optional<Fusion> chained = channels_last_.Take(api_, group, options_.graphs);
      const Fusion fusion = chained ? *chained : FindFusion(api_, group, options_);
      const auto make = [&](PackedBlocks& blocks) {
        const PackedBlocksScope scope(&blocks);
        infos[i] = NewFusedKernel(api_, device_, options_, runs_, graphs_, fusion, nodes[i]);
      };
      if (writer) {
        contexts[i] = writer->Write(fusion, nodes[i], make);
      } else if (IsContextNode(group[0])) {
        reader.Read(group[0], make);
      } else {
        infos[i] = NewFusedKernel(api_, device_, options_, runs_, graphs_, fusion, nodes[i]);
      }
    }
    if (writer) writer->Finish();
    if (const std::string warning = reader.Warning(); !warning.empty())
      Log(api_, logger_, ORT_LOGGING_LEVEL_WARNING, "NPUExecutionProvider: " + warning);
  }

  std::string ModelPath(const OrtGraph* graph) const {
    const ORTCHAR_T* path = nullptr;
    api_.Check(api_.ort.Graph_GetModelPath(graph, &path));
    return path == nullptr ? "" : path;
  }

  static std::string LineOf(const Decision& decision) {
    return decision.op_type + " '" + decision.node + "': " + decision.reason;
  }

  // Onnxruntime fails the session for these nodes without a name, and before anything of the provider is called.
  void WarnOfRefused() {
    for (const Decision& decision : log_->decisions()) {
      if (decision.implemented || !warned_.insert(LineOf(decision)).second) continue;
      Log(api_, logger_, ORT_LOGGING_LEVEL_WARNING, "left to the CPU: " + LineOf(decision));
    }
  }

  // Fails a session that would otherwise silently move to the CPU.
  void CheckDecisions() const {
    if (const std::string error = log_->error(); !error.empty()) {
      Fail(ErrorCode::kInternal, "NPUExecutionProvider could not examine the model: ", error);
    }
    NPU_CHECK(channels_last_.complete(),
              "NPUExecutionProvider: expected onnxruntime to compile all nodes that exchange ",
              "values with channels last, but it left some out; set the provider option fusion to 0");
    CheckReplayable();
    size_t refused = 0;
    std::string list;
    for (const Decision& decision : log_->decisions()) {
      if (decision.implemented) continue;
      ++refused;
      const std::string line = LineOf(decision);
      if (refused <= 5) list += "; " + line;
      Log(api_, logger_, ORT_LOGGING_LEVEL_INFO, "left to the CPU: " + line);
    }
    NPU_CHECK(refused == 0 || !options_.refuse_cpu_fallback, "NPUExecutionProvider: cpu_fallback is 'refuse', but ",
              refused, " nodes cannot run on the NPU", list);
    NPU_CHECK(refused == 0 || !options_.host_memory, "NPUExecutionProvider: host_memory expected a model that runs on ",
              "the NPU as a whole (set it to 0 for this one), but ", refused, " nodes cannot", list);
  }

  void CheckReplayable() const {
    for (const Decision& decision : log_->decisions()) {
      NPU_CHECK(decision.frozen_input.empty(), "NPUExecutionProvider: enable_npu_graph expected host inputs to follow ",
                "from shapes and constants, got '", decision.frozen_input, "' of ", decision.op_type, " '",
                decision.node, "', which depends on what a model input holds: a replay would keep its first value");
    }
  }

  Factory& factory_;
  const Api& api_;
  DeviceState& device_;
  const Options options_;
  const OrtLogger* logger_;
  const ContextStamp stamp_;
  const std::string stamp_text_;
  std::shared_ptr<AssignmentLog> log_;
  std::shared_ptr<SharedConstants> constants_;
  ChannelsLast channels_last_;
  std::set<std::string> warned_;  // of which nodes
  std::shared_ptr<SessionRuns> runs_;
  std::shared_ptr<SessionGraphs> graphs_;                    // null: runs are not captured
  const std::vector<std::shared_ptr<Communicator>> groups_;  // whose names its operators know
};

}  // namespace

OrtEp* NewEp(Factory& factory, const Options& options, const OrtLogger* logger) {
  return new Ep(factory, options, logger);
}

void DeleteEp(OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); }

DeviceState& DeviceOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->device(); }
const Options& OptionsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->options(); }

std::shared_ptr<SharedConstants> ConstantsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->constants(); }
std::shared_ptr<SessionRuns> RunsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->runs(); }
std::shared_ptr<SessionGraphs> GraphsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->graphs(); }

void BeginAssignmentCapture() {
  capturing = true;
  captured.reset();
}

std::shared_ptr<const AssignmentLog> EndAssignmentCapture() {
  capturing = false;
  return std::exchange(captured, nullptr);
}

}  // namespace npu::provider
