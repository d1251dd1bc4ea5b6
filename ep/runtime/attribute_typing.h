// Outputs of npu:: operators whose dtype depends on an integer attribute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/dtype.h"

namespace npu {

// Such an output has the rank of the first input.
struct AttributeTyping {
  size_t output;
  std::string attribute;
  std::vector<std::pair<int64_t, DType>> types;  // by the attribute's value
  DType absent;                                  // the output's dtype without the attribute
};

// Called by the generated table of operators, while the kernel library is loaded.
void AddAttributeTyping(const std::string& op_type, AttributeTyping typing);
// `op_type` must have been looked up in the registry, which loads the kernel library.
const std::vector<AttributeTyping>& AttributeTypingsOf(const std::string& op_type);

}  // namespace npu
