#include "ep/runtime/graph_nodes.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include "ep/runtime/device.h"
#include "ep/runtime/log.h"

namespace npu {

PoolId NewPoolId() {
  static std::atomic<uint64_t> last{0};
  return {++last, 0};
}

PoolHold::~PoolHold() {
  for (Device* device : devices_) {
    try {
      device->allocator().ReleasePool(id_);
    } catch (const std::exception& e) {
      NPU_LOG(kError, "graph: ", e.what());
    }
  }
}

void PoolHold::Retain(Device& device) {
  if (std::find(devices_.begin(), devices_.end(), &device) != devices_.end()) return;
  devices_.reserve(devices_.size() + 1);
  device.allocator().RetainPool(id_);
  devices_.push_back(&device);
}

GraphNodes::~GraphNodes() {
  for (BackendStream* helper : helpers) backend.DestroyStream(helper);
}

PoolHold& GraphNodes::UpdatePool(const TaskGroup& group) {
  std::lock_guard lock(groups_mutex);
  PoolHold& hold = update_pools.try_emplace(group.stream, NewPoolId()).first->second;
  hold.Retain(*group.device);
  return hold;
}

std::shared_ptr<TaskGroup::Tasks> GraphNodes::TasksOf(size_t group) {
  std::lock_guard lock(groups_mutex);
  return groups[group].tasks;
}

}  // namespace npu
