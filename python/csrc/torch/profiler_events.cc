// Events for torch.autograd.profiler.profile(use_device="npu"): without Kineto, torch records one before and one after
// each operator, and its time on npu is the time between them.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <functional>
#include <memory>

#include "ep/runtime/graph.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class ProfilerEvents final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const int current = CurrentDevice();
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(current);
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    Stream& stream = CurrentStream(current);
    if (Graph::IsCapturing(stream)) return;  // a captured operator does not run now: torch shows no time for it
    auto made = std::make_shared<Event>(Runtime::Instance().backend(), /*timing=*/true);
    made->Record(stream);
    *event = std::move(made);
  }

  // In microseconds.
  float elapsed(const ProfilerVoidEventStub* begin, const ProfilerVoidEventStub* end) const override {
    const auto& first = *static_cast<const Event*>(begin->get());
    const auto& last = *static_cast<const Event*>(end->get());
    first.Synchronize();
    last.Synchronize();
    return static_cast<float>(first.ElapsedMs(last) * 1000);
  }

  // Ranges are for tools outside of the process, which the runtime has none of.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> op) const override {
    const int current = CurrentDevice();
    for (int i = 0; i < Runtime::Instance().device_count(); ++i) {
      SetCurrentDevice(i);
      op(i);
    }
    SetCurrentDevice(current);
  }

  void synchronize() const override { Runtime::Instance().device(CurrentDevice()).Synchronize(); }
};

ProfilerEvents profiler_events;
const bool profiler_events_registered = [] {
  torch::profiler::impl::registerPrivateUse1Methods(&profiler_events);
  return true;
}();

}  // namespace
}  // namespace npu::aten
