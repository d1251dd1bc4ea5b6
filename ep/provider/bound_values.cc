#include "ep/provider/bound_values.h"

#include <map>
#include <sstream>
#include <utility>

#include "ep/runtime/error.h"

namespace npu::provider {
namespace {

thread_local std::string this_thread;

// From "input\tname" to what identifies it.
std::map<std::string, std::string> ParseBound(const std::string& values) {
  std::map<std::string, std::string> parsed;
  std::istringstream lines(values);
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.rfind('\t');
    if (end != std::string::npos) parsed[line.substr(0, end)] = line.substr(end + 1);
  }
  return parsed;
}

[[noreturn]] void RefuseBound(int id, std::string value, const std::string& captured, const std::string& bound) {
  value.replace(value.find('\t'), 1, " '");
  Fail(ErrorCode::kInvalidArgument, "[graph] expected the values that graph ", id, " was captured with, got ", value,
       "' bound to ", bound, " instead of ", captured,
       ": a replay reads and writes the captured ones only. Bind values once and update their content in place, give "
       "each binding its own gpu_graph_id, or call release_captured_graph(",
       id, ") before");
}

}  // namespace

void SetBoundValues(std::string values) { this_thread = std::move(values); }

const std::string& BoundValues() { return this_thread; }

void CheckSameValues(int id, const std::string& captured, const std::string& bound) {
  if (captured.empty() || bound.empty() || captured == bound) return;
  const auto before = ParseBound(captured), now = ParseBound(bound);
  for (const auto& [value, identity] : now) {
    const auto found = before.find(value);
    const std::string had = found == before.end() ? "nothing" : found->second;
    if (had != identity) RefuseBound(id, value, had, identity);
  }
  for (const auto& [value, identity] : before) {
    if (value.starts_with("input") && now.count(value) == 0) RefuseBound(id, value, identity, "nothing");
  }
}

}  // namespace npu::provider
