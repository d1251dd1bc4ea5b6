// npu launches in torch's own profiler: Kineto requests them from this session and links them to the operators that
// issued them, on one clock.
#include <IActivityProfiler.h>
#include <libkineto.h>
#include <output_base.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/launch_trace.h"

namespace npu::aten {
namespace {

using libkineto::ActivityType;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    if (LaunchTrace::Start()) {
      status_ = libkineto::TraceStatus::RECORDING;
    } else {
      status_ = libkineto::TraceStatus::ERROR;
      errors_.push_back("a profile of npu launches runs already: end it before the next one");
    }
  }

  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    std::optional<pybind11::gil_scoped_release> no_gil;  // an awaited launch may be a Python function
    if (PyGILState_Check()) no_gil.emplace();
    spans_ = LaunchTrace::Stop();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, std::numeric_limits<int64_t>::max());
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback operator_of,
                    int64_t start_time, int64_t end_time) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = {start_time, end_time, "npu"};
    buffer_->gpuOpCount = static_cast<int>(spans_.size());
    const int64_t offset = SteadyToSystemNs();
    std::set<std::pair<int, uint64_t>> streams;
    int32_t number = 0;
    for (const LaunchSpan& span : spans_) {
      const libkineto::ITraceActivity* cause = operator_of(static_cast<int32_t>(span.cause));
      ++number;
      if (!span.is_part) AddLaunch(span, number, offset, cause);
      AddKernel(span, number, offset, cause);
      streams.emplace(span.device, span.stream);
    }
    for (const auto& activity : buffer_->activities) activity->log(logger);
    for (int i = 0; i < Runtime::Instance().device_count(); ++i) {
      const std::string name = "NPU " + std::to_string(i);
      logger.handleDeviceInfo({i, libkineto::kExceedMaxPid + i, name, name}, start_time);
    }
    for (const auto& [device, stream] : streams) {
      const auto id = static_cast<int64_t>(stream);
      logger.handleResourceInfo({id, id, device, "stream " + std::to_string(stream)}, start_time);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }  // several: see processTrace
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override {
    Operators().push_back(id);
    LaunchTrace::SetCause(id);
  }
  void popCorrelationId() override {
    std::vector<uint64_t>& operators = Operators();
    if (!operators.empty()) operators.pop_back();
    LaunchTrace::SetCause(operators.empty() ? 0 : operators.back());
  }

 private:
  // The operators that this thread is executing, the innermost last.
  static std::vector<uint64_t>& Operators() {
    thread_local std::vector<uint64_t> operators;
    return operators;
  }

  libkineto::GenericTraceActivity& Add(ActivityType type, const std::string& name, int32_t number,
                                       const libkineto::ITraceActivity* cause) {
    buffer_->emplace_activity(buffer_->span, type, name);
    libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
    activity.id = number;
    activity.linked = cause;
    activity.flow.id = number;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.addMetadata("correlation", number);
    return activity;
  }

  // The launch on the host, from which the trace draws an arrow to the kernel.
  void AddLaunch(const LaunchSpan& span, int32_t number, int64_t offset, const libkineto::ITraceActivity* cause) {
    libkineto::GenericTraceActivity& launch = Add(ActivityType::PRIVATEUSE1_RUNTIME, "npuLaunchKernel", number, cause);
    launch.startTime = launch.endTime = span.issued_ns + offset;
    launch.device = libkineto::processId();
    launch.resource = launch.threadId = span.thread;
    launch.flow.start = true;
  }

  void AddKernel(const LaunchSpan& span, int32_t number, int64_t offset, const libkineto::ITraceActivity* cause) {
    // A graph is an annotation around its kernels: as a kernel, it would count their times twice in sums.
    const ActivityType type = span.has_parts ? ActivityType::GPU_USER_ANNOTATION : ActivityType::CONCURRENT_KERNEL;
    libkineto::GenericTraceActivity& kernel = Add(type, span.op, number, cause);
    if (span.is_part) kernel.flow.id = 0;  // the arrow points to the graph
    kernel.startTime = span.begin_ns + offset;
    kernel.endTime = span.end_ns + offset;
    kernel.device = span.device;
    kernel.resource = static_cast<int32_t>(span.stream);
    kernel.flow.start = false;
    kernel.addMetadata("device", span.device);
    kernel.addMetadata("stream", span.stream);
  }

  std::vector<LaunchSpan> spans_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class NpuProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return kinds_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    // A profile of the CPU alone requests launches on the host, too, but no kernels.
    if (wanted.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "npu";
  const std::set<ActivityType> kinds_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_USER_ANNOTATION,
                                      ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(NpuProfiler);

}  // namespace
}  // namespace npu::aten
