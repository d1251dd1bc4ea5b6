// Runs the runtime's kernels as ORT kernels.
#pragma once

#include <memory>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/options.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"
#include "ep/provider/shared_constants.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Creates the kernel of one node; ORT releases it through its Release function.
OrtKernelImpl* NewKernel(const Api& api, DeviceState& device, const Options& options,
                         std::shared_ptr<SharedConstants> constants, std::shared_ptr<SessionRuns> runs,
                         std::shared_ptr<SessionGraphs> graphs, const OpDef& def, const OrtKernelInfo* info);

// MemcpyFromHost and MemcpyToHost, which ORT inserts where a value crosses between the CPU and the NPU.
OrtKernelImpl* NewMemcpyKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs, bool to_host);

}  // namespace npu::provider
