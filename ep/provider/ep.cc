#include "ep/provider/ep.h"

#include <string>
#include <utility>

#include "ep/provider/factory.h"
#include "ep/provider/logging.h"
#include "ep/provider/partition.h"

namespace npu::provider {
namespace {

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
        log_(std::make_shared<AssignmentLog>()),
        constants_(std::make_shared<SharedConstants>(device_)) {
    ort_version_supported = ORT_API_VERSION;
    GetName = [](const OrtEp*) noexcept { return kEpName; };
    GetCapability = &GetCapabilityImpl;
    GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** out) noexcept {
      auto& me = *static_cast<Ep*>(self);
      *out = nullptr;
      return Guard(me.api_.ort, [&] { *out = me.factory_.kernel_registry(); });
    };
    IsConcurrentRunSupported = [](OrtEp*, bool* supported) noexcept -> OrtStatus* {
      *supported = true;
      return nullptr;
    };
    Sync = [](OrtEp* self) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.device_.WaitForStreams(); });
    };
    OnRunStart = [](OrtEp* self, const OrtRunOptions*) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.device_.FollowCaller(); });
    };
    OnSessionInitializationEnd = [](OrtEp* self) noexcept {
      auto& me = *static_cast<Ep*>(self);
      return Guard(me.api_.ort, [&] { me.CheckDecisions(); });
    };
    if (capturing) captured = log_;
  }

  DeviceState& device() const { return device_; }
  const Options& options() const { return options_; }
  const std::shared_ptr<SharedConstants>& constants() const { return constants_; }

 private:
  static OrtStatus* ORT_API_CALL GetCapabilityImpl(OrtEp* self, const OrtGraph* graph,
                                                   OrtEpGraphSupportInfo* support) noexcept {
    auto& me = *static_cast<Ep*>(self);
    return Guard(me.api_.ort, [&] {
      try {
        ClaimNodes(me.api_, graph, support, *me.log_, *me.constants_);
      } catch (const std::exception& error) {
        me.log_->Fail(error.what());
        throw;
      }
    });
  }

  // Fails the session where it would otherwise move to the CPU unasked.
  void CheckDecisions() const {
    if (const std::string error = log_->error(); !error.empty()) {
      Fail(ErrorCode::kInternal, "NPUExecutionProvider could not examine the model: ", error);
    }
    size_t refused = 0;
    std::string list;
    for (const Decision& decision : log_->decisions()) {
      if (decision.claimed || decision.shape_arithmetic) continue;
      ++refused;
      const std::string line = decision.op_type + " '" + decision.node + "': " + decision.reason;
      if (refused <= 5) list += "; " + line;
      Log(api_, logger_, ORT_LOGGING_LEVEL_INFO, "left to the CPU: " + line);
    }
    NPU_CHECK(refused == 0 || !options_.refuse_cpu_fallback, "NPUExecutionProvider: cpu_fallback is 'refuse', but ",
              refused, " nodes cannot run on the NPU", list);
  }

  Factory& factory_;
  const Api& api_;
  DeviceState& device_;
  const Options options_;
  const OrtLogger* logger_;
  std::shared_ptr<AssignmentLog> log_;
  std::shared_ptr<SharedConstants> constants_;
};

}  // namespace

OrtEp* NewEp(Factory& factory, const Options& options, const OrtLogger* logger) {
  return new Ep(factory, options, logger);
}

void DeleteEp(OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); }

DeviceState& DeviceOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->device(); }
const Options& OptionsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->options(); }

std::shared_ptr<SharedConstants> ConstantsOf(const OrtEp* ep) { return static_cast<const Ep*>(ep)->constants(); }

void BeginAssignmentCapture() {
  capturing = true;
  captured.reset();
}

std::shared_ptr<const AssignmentLog> EndAssignmentCapture() {
  capturing = false;
  return std::exchange(captured, nullptr);
}

}  // namespace npu::provider
