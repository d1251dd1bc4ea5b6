// The times that DistributedDataParallel collects of the first iterations; without a timer it warns on each rank.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace c10d {  // where the registry's macros find it
namespace {

class NpuTimer final : public Timer {
 public:
  explicit NpuTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event);
    const c10::impl::VirtualGuardImpl guard(device_.type());
    c10::Event& mark = marks_.try_emplace(event, device_.type(), c10::EventFlag::BACKEND_DEFAULT).first->second;
    mark.record(guard.getStream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = marks_.find(start), to = marks_.find(end);
    if (from == marks_.end() || to == marks_.end()) return std::nullopt;
    from->second.synchronize();
    to->second.synchronize();
    const double milliseconds = from->second.elapsedTime(to->second);
    if (milliseconds < 0) return std::nullopt;  // the end is of an earlier iteration
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  const c10::Device device_;
  std::map<Event, c10::Event> marks_;
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, NpuTimer);

}  // namespace
}  // namespace c10d
