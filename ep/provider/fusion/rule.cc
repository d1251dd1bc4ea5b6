#include "ep/provider/fusion/rule.h"

#include <algorithm>

namespace npu::provider {
namespace {

std::vector<FusionRule>& RegisteredRules() {
  static std::vector<FusionRule> rules;
  return rules;
}

}  // namespace

const std::vector<FusionRule>& FusionRules() { return RegisteredRules(); }

FusionRegistrar::FusionRegistrar(FusionRule rule) { RegisteredRules().push_back(rule); }

const GraphNode* FusionMatch::Take(const GraphNode* node, std::string_view type, std::string_view domain) {
  if (node == nullptr || node->domain != domain || node->view.op_type != type) return nullptr;
  const size_t index = graph_->IndexOf(*node);
  if (std::find(nodes_.begin(), nodes_.end(), index) == nodes_.end()) nodes_.push_back(index);
  return node;
}

const GraphNode* FusionMatch::TakeProducer(const ValueView& value, std::string_view type, std::string_view domain) {
  return Take(graph_->Producer(value), type, domain);
}

}  // namespace npu::provider
