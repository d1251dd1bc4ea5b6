#include "ep/runtime/attribute_alias.h"

#include <algorithm>

#include "ep/runtime/by_op_type.h"

namespace npu {
namespace {

Attributes::Value InsteadOf(const std::vector<std::string>& words, const Attributes::Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto at = text == nullptr ? words.end() : std::find(words.begin(), words.end(), *text);
  return at == words.end() ? value : Attributes::Value(static_cast<int64_t>(at - words.begin()));
}

}  // namespace

void AddAttributeAlias(const std::string& op_type, AttributeAlias alias) {
  ByOpType<AttributeAlias>::Instance().Add(op_type, std::move(alias));
}

const std::vector<AttributeAlias>& AttributeAliasesOf(const std::string& op_type) {
  return ByOpType<AttributeAlias>::Instance().Of(op_type);
}

Attributes AsDefined(const std::string& op_type, const Attributes& given) {
  const std::vector<AttributeAlias>& aliases = AttributeAliasesOf(op_type);
  Attributes out;
  for (const auto& [name, value] : given.values()) {
    const auto alias = std::find_if(aliases.begin(), aliases.end(), [&name = name](const AttributeAlias& a) {
      return a.attribute == name || std::find(a.names.begin(), a.names.end(), name) != a.names.end();
    });
    const bool own = alias == aliases.end() || alias->attribute == name;
    if (!own && given.Has(alias->attribute)) continue;
    if (alias == aliases.end())
      out.Set(name, value);
    else
      out.Set(alias->attribute, InsteadOf(alias->words, value));
  }
  return out;
}

}  // namespace npu
