// If, Loop and Scan: onnxruntime's own kernels, which run the bodies wherever their nodes are, with inputs and outputs
// in NPU memory. A body may read conditions and trip counts on the host, so it is not captured in graphs.
#pragma once

#include <string>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/node_view.h"
#include "ep/provider/options.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Creates the kernel of one node; ORT releases it.
using ControlFlowFactory = OrtKernelImpl* (*)(const Api& api, DeviceState& device, const OrtKernelInfo* info);

struct ControlFlow {
  OpDef def;  // where the inputs are; it has no kernel of the runtime
  ControlFlowFactory make;
};

const std::vector<ControlFlow>& ControlFlows();

// Null if the node is none of these.
const ControlFlow* FindControlFlow(const GraphNode& node);
// Why such a node is left to the CPU, else empty.
std::string WhyControlFlowUnsupported(const GraphNode& node, const Options& options);

}  // namespace npu::provider
