// What the EPContext node of a compiled model says about the operator that it stands for, as text in its attribute
// `notes`. A model comes from anywhere: what is read is checked like a node of any other model (plan.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ep/runtime/attributes.h"

namespace npu::provider {

// Where a packed constant is in the node's data.
struct PackedBlock {
  uint64_t offset = 0, bytes = 0;
  uint64_t checksum = 0;  // see Checksum
};

struct ContextDescription {
  std::string domain, type;
  int version = 1;
  // Per input of the operator, the input of the EPContext node; -1: omitted.
  std::vector<int64_t> inputs;
  Attributes attributes;
  std::vector<PackedBlock> blocks;  // in the order in which the kernel packs
};

std::string ToText(const ContextDescription& description);
// Throws Error(kInvalidArgument) for any other text.
ContextDescription ParseDescription(const std::string& text);

}  // namespace npu::provider
