// Selects the nodes of a graph that the provider claims.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/assignment_log.h"
#include "ep/provider/fusion/channels_last.h"
#include "ep/provider/options.h"
#include "ep/provider/shared_constants.h"

namespace npu::provider {

// Claims every node that is fully implemented, except shape arithmetic, and each group of nodes that a fused operator
// computes as one; records each decision with its reason, which constants have several readers, and which values are
// channels last.
void ClaimNodes(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, const Options& options,
                DeviceState& device, AssignmentLog& log, SharedConstants& constants, ChannelsLast& channels_last);

}  // namespace npu::provider
