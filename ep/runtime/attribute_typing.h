// Outputs of npu:: operators whose dtype depends on an integer attribute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/dtype.h"

namespace npu {

struct AttributeTyping {
  size_t output;
  std::string attribute;
  std::vector<std::pair<int64_t, DType>> types;  // by the attribute's value
  DType absent;                                  // the output's dtype without the attribute
  bool otherwise_input;                          // the first input's dtype where none of these is given
  std::string added_axes;  // the attribute that says how many axes more than the first input the output has, or ""
};

// Called by the generated table of operators, while the kernel library is loaded.
void AddAttributeTyping(const std::string& op_type, AttributeTyping typing);
// `op_type` must have been looked up in the registry, which loads the kernel library.
const std::vector<AttributeTyping>& AttributeTypingsOf(const std::string& op_type);

}  // namespace npu
