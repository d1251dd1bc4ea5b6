// Selects the nodes of a graph that the provider claims.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/assignment_log.h"
#include "ep/provider/options.h"
#include "ep/provider/shared_constants.h"

namespace npu::provider {

// Claims every node that is fully implemented, except shape arithmetic, and each group of nodes that a fused operator
// computes as one; records each decision with its reason, and which constants have several readers.
void ClaimNodes(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, const Options& options,
                DeviceState& device, AssignmentLog& log, SharedConstants& constants);

}  // namespace npu::provider
