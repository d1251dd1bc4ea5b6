// Results of npu:: operators whose type an integer attribute decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/dtype.h"

namespace npu {

// Such a result has the rank of the first input.
struct AttributeTyping {
  size_t output;
  std::string attribute;
  std::vector<std::pair<int64_t, DType>> types;  // by the attribute's value
  DType absent;                                  // the result's type without the attribute
};

// Called by the generated table of operators, while the kernel library is loaded.
void AddAttributeTyping(const std::string& op_type, AttributeTyping typing);
// Of an op type that the registry has been asked for.
const std::vector<AttributeTyping>& AttributeTypingsOf(const std::string& op_type);

}  // namespace npu
