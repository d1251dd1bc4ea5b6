// Fused nodes in onnxruntime: each is one kernel of the registry.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/options.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"

namespace npu::provider {

// The kernel of a group that PlanFusions chose. `graph`: the group, in which the rules find it again; `node`: what
// onnxruntime has made of it. Onnxruntime releases it through ReleaseFusedKernel.
OrtNodeComputeInfo* NewFusedKernel(const Api& api, DeviceState& device, const Options& options,
                                   std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs,
                                   const OrtGraph* graph, const OrtNode* node);
void ReleaseFusedKernel(OrtNodeComputeInfo* info) noexcept;

}  // namespace npu::provider
