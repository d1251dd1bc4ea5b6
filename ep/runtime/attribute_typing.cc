#include "ep/runtime/attribute_typing.h"

#include "ep/runtime/by_op_type.h"

namespace npu {

void AddAttributeTyping(const std::string& op_type, AttributeTyping typing) {
  ByOpType<AttributeTyping>::Instance().Add(op_type, std::move(typing));
}

const std::vector<AttributeTyping>& AttributeTypingsOf(const std::string& op_type) {
  return ByOpType<AttributeTyping>::Instance().Of(op_type);
}

}  // namespace npu
