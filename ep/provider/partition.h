// Which nodes of a graph the provider takes.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/assignment_log.h"

namespace npu::provider {

// Claims every node that is really implemented, except shape arithmetic, and records each decision with its reason.
void ClaimNodes(const Api& api, const OrtGraph* graph, OrtEpGraphSupportInfo* support, AssignmentLog& log);

}  // namespace npu::provider
