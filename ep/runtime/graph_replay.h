// How a graph's launches run when it is replayed: one after the other, or, where streams of the capture ran beside each
// other, each stream's on a helper stream of the graph's own. Either way a replay is one launch of the replaying
// stream: it begins behind what came before, ends when the last node has, and fails as a whole.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ep/runtime/graph_nodes.h"

namespace npu {

// The first branch is that of the first node; the replaying stream runs it. Empty when every node comes after the one
// before it: there is nothing to run at once.
std::vector<GraphBranch> PlanBranches(const std::vector<GraphNode>& nodes);

using ReplayDraws = std::vector<std::pair<std::shared_ptr<ReplayOrigin>, PhiloxState>>;

// What the graph draws is taken out of its generators now, as the work itself would have done.
ReplayDraws TakeDraws(GraphNodes& graph);
// Makes what RunReplay needs, where an error can still be told to the caller.
void PrepareReplay(GraphNodes& graph);
// In the replaying stream's task. Throws FailedBefore with what failed, "[graph] [op] …".
void RunReplay(GraphNodes& graph, const ReplayDraws& draws);
// For a replay that was skipped, behind what failed with `status`: only what must run all the same.
void SkipReplay(GraphNodes& graph, const Status& status);

}  // namespace npu
