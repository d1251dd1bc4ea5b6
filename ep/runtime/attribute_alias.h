// Other names and values that files have for attributes of npu:: operators.
#pragma once

#include <string>
#include <vector>

#include "ep/runtime/attributes.h"

namespace npu {

struct AttributeAlias {
  std::string attribute;
  std::vector<std::string> names;  // that files of others give it
  std::vector<std::string> words;  // strings that such files have for the integers from 0 on
};

// Called by the generated table of operators, while the kernel library is loaded.
void AddAttributeAlias(const std::string& op_type, AttributeAlias alias);
// `op_type` must have been looked up in the registry, which loads the kernel library.
const std::vector<AttributeAlias>& AttributeAliasesOf(const std::string& op_type);

// A node's attributes under the names and with the values of its definition.
Attributes AsDefined(const std::string& op_type, const Attributes& given);

}  // namespace npu
