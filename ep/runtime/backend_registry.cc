#include "ep/runtime/backend_registry.h"

#include <map>
#include <utility>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

std::map<std::string, BackendEntry>& Backends() {
  static auto& backends = *new std::map<std::string, BackendEntry>;  // static initialisers use it in any order
  return backends;
}

}  // namespace

bool RegisterBackend(BackendEntry entry) {
  const std::string name = entry.name;
  NPU_CHECK(Backends().try_emplace(name, std::move(entry)).second, "two backends are called ", name);
  return true;
}

const BackendEntry& FindBackend(const std::string& name) {
  const auto found = Backends().find(name);
  if (found != Backends().end()) return found->second;
  std::string names;
  for (const auto& [known, entry] : Backends()) names += (names.empty() ? "" : ", ") + known;
  Fail(ErrorCode::kInvalidArgument, "[ORT_NPU_BACKEND] expected one of ", names, ", got '", name, "'");
}

const BackendEntry& BackendFromEnvironment() { return FindBackend(BackendNameFromEnvironment().value_or("host")); }

}  // namespace npu
