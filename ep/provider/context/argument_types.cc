#include "ep/provider/context/argument_types.h"

#include <algorithm>
#include <utility>

namespace npu::provider {
namespace {

// The inputs that have to be of one type.
using Group = std::vector<size_t>;

void CheckOneType(const FusedNode& node, const Group& group) {
  const ValueView* first = nullptr;
  for (const size_t i : group) {
    const ValueView& input = node.inputs[i];
    if (input.info == nullptr) continue;
    if (first == nullptr) first = &input;
    NPU_CHECK(input.dtype == first->dtype, "[", node.type, "] expected '", input.name, "' of the type of '",
              first->name, "', ", npu::NameOf(first->dtype), ", got ", npu::NameOf(input.dtype));
  }
}

// By onnxruntime's schema. An operator's last input may be repeated.
std::vector<Group> GroupsOfSchema(const Api& api, const FusedNode& node, const OpDef& def) {
  OrtOpSchema* raw = nullptr;
  api.Check(api.ep.GetOpSchema(node.type.c_str(), node.version, node.domain.c_str(), &raw));
  NPU_CHECK(raw != nullptr, "[", node.type, "] expected an operator of onnxruntime, got domain '", node.domain, "'");
  const auto schema = Own(raw, api.ep.ReleaseOpSchema);
  size_t constraints = 0;
  api.Check(api.ep.OpSchema_GetTypeConstraintCount(schema.get(), &constraints));
  std::vector<Group> groups;
  for (size_t c = 0; c < constraints; ++c) {
    const OrtOpSchemaTypeConstraint* constraint = nullptr;
    const size_t* indices = nullptr;
    size_t count = 0;
    api.Check(api.ep.OpSchema_GetTypeConstraint(schema.get(), c, &constraint));
    api.Check(api.ep.OpSchemaTypeConstraint_GetInputIndices(constraint, &indices, &count));
    Group group;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (std::find(indices, indices + count, std::min(i, def.inputs.size() - 1)) != indices + count)
        group.push_back(i);
    groups.push_back(std::move(group));
  }
  return groups;
}

// Operators that only the provider makes have no schema: inputs that take the same types are of one type.
std::vector<Group> GroupsOfDefinition(const FusedNode& node, const OpDef& def) {
  std::vector<Group> groups(node.inputs.size());
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    for (size_t other = 0; other < node.inputs.size(); ++other)
      if (ArgAt(def.inputs, other)->dtypes.bits() == ArgAt(def.inputs, i)->dtypes.bits()) groups[i].push_back(other);
  }
  return groups;
}

}  // namespace

void CheckArgumentTypes(const Api& api, const FusedNode& node, const OpDef& def) {
  if (node.domain == "npu") return;  // no schema ties their types: their kernels check them
  const bool made_here = node.domain == "npu.fused" || node.domain == "npu.channels_last";
  for (const Group& group : made_here ? GroupsOfDefinition(node, def) : GroupsOfSchema(api, node, def))
    CheckOneType(node, group);
}

}  // namespace npu::provider
