// The provider's kernels as ORT kernel definitions: one per operator of the runtime's registry, control
// flow, and the two copies.
#pragma once

#include <memory>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/control_flow.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Where a session's kernels find their inputs and outputs.
enum class ValuePlacement {
  kDevice,  // in device memory, except for what an operator's definition places in host memory (ArgDef::cpu)
  kReplay,  // as kDevice, and late inputs in device memory (KernelInfo::late_inputs)
  kHost,    // in host memory (provider option host_memory)
};
inline constexpr size_t kValuePlacements = 3;

class KernelRegistry {
 public:
  // Throws when the kernel library cannot be loaded.
  KernelRegistry(const Api& api, const char* ep_name, ValuePlacement placement);

  const OrtKernelRegistry* get() const { return registry_.get(); }

 private:
  // The state that ORT passes back when it creates a kernel.
  struct Entry {
    const Api* api;
    const OpDef* def;  // null: one of the copies
    bool to_host;
    ControlFlowFactory control_flow;  // null: a kernel of the runtime
  };

  void Register(const char* domain, const char* type, int since, int until, const OpDef* def, bool to_host,
                ControlFlowFactory control_flow = nullptr);
  static OrtStatus* ORT_API_CALL Create(void* state, const OrtKernelInfo* info, OrtKernelImpl** out) noexcept;

  const Api& api_;
  const char* ep_name_;
  const ValuePlacement placement_;
  Owned<OrtKernelRegistry> registry_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace npu::provider
