// How a graph's launches run when it is replayed: one after the other, or, if streams of the capture ran concurrently,
// each stream's on a helper stream of the graph's own. Either way a replay is one launch of the replaying stream: it
// begins behind earlier work, ends with its last node, and fails as a whole.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ep/runtime/graph_nodes.h"

namespace npu {

// The first branch is that of the first node; the replaying stream runs it. Empty when every node comes after the
// previous one, so that nothing can run concurrently.
std::vector<GraphBranch> PlanBranches(const std::vector<GraphNode>& nodes);

using ReplayDraws = std::vector<std::pair<std::shared_ptr<ReplayOrigin>, PhiloxState>>;

// Advances the generators by what the graph draws, as the launches themselves would have done.
ReplayDraws TakeDraws(GraphNodes& graph);
// Creates what RunReplay needs, while errors can still be reported to the caller.
void PrepareReplay(GraphNodes& graph);
// Runs in the replaying stream's task. Throws FailedBefore with the failure, "[graph] [op] …".
void RunReplay(GraphNodes& graph, const ReplayDraws& draws);
// For a replay that is skipped because the stream failed with `status`: runs only the nodes that run even then.
void SkipReplay(GraphNodes& graph, const Status& status);

}  // namespace npu
