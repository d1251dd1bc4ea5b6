// Fused nodes in onnxruntime: each is one kernel of the registry.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/fusion/plan.h"
#include "ep/provider/options.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"

namespace npu::provider {

// The kernel of `fusion`. `node`: what onnxruntime has made of the group. Onnxruntime releases it through
// ReleaseFusedKernel.
OrtNodeComputeInfo* NewFusedKernel(const Api& api, DeviceState& device, const Options& options,
                                   std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs,
                                   const Fusion& fusion, const OrtNode* node);
// The operator's kernel alone, without its constants.
std::unique_ptr<Kernel> MakeFusedKernel(const Fusion& fusion, const Options& options, const std::string& name);
void ReleaseFusedKernel(OrtNodeComputeInfo* info) noexcept;

}  // namespace npu::provider
