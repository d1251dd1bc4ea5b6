#include "ep/runtime/attribute_typing.h"

#include <map>
#include <mutex>

namespace npu {
namespace {

struct Typings {
  std::mutex mutex;
  std::map<std::string, std::vector<AttributeTyping>> by_type;  // a map, so that references stay valid
};

Typings& All() {
  static auto* typings = new Typings;  // outlives every library that uses it
  return *typings;
}

}  // namespace

void AddAttributeTyping(const std::string& op_type, AttributeTyping typing) {
  const std::lock_guard lock(All().mutex);
  All().by_type[op_type].push_back(std::move(typing));
}

const std::vector<AttributeTyping>& AttributeTypingsOf(const std::string& op_type) {
  const std::lock_guard lock(All().mutex);
  return All().by_type[op_type];
}

}  // namespace npu
