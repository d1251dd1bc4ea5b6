// Keeps values between convolutions in memory with their channels last (docs/decisions/0034).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ep/provider/fusion/plan.h"

namespace npu::provider {

// The values of one graph that are channels last, and the operators that pay without any. Onnxruntime plans a graph and
// compiles it before it plans another.
class ChannelsLast {
 public:
  // Decides for a graph, and makes the operators that read or write such values those of domain npu.channels_last: of
  // `fusions`, and of nodes for themselves that are not `left_out`. `late_inputs`: see KernelInfo.
  void Plan(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs,
            const std::function<bool(size_t)>& left_out, std::vector<Fusion>& fusions);

  // The operator that the plan has made of all these nodes; none if it left them as they are. Each is found once.
  std::optional<Fusion> Take(const Api& api, const std::vector<GraphNode>& nodes, bool late_inputs);

  // The results of operators that were planned and not taken: others would misread them.
  bool complete() const { return layouts_.empty(); }

 private:
  struct Layout {
    std::vector<int64_t> inputs;  // positions
    bool output = false;
    bool alone = false;  // nothing is channels last outside of the operator
  };
  static void Apply(const Layout& layout, FusedNode& fused);

  std::unordered_map<std::string, Layout> layouts_;  // by the name of the operator's result
};

}  // namespace npu::provider
