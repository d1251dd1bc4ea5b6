#include "ep/provider/assignment_log.h"

#include <utility>

#include "ep/runtime/error.h"

namespace npu::provider {
namespace {

// A JSON string. Printable leaves no other control characters than these two.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : Printable(text)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void AssignmentLog::Record(const std::string& identity, Decision decision) {
  std::lock_guard lock(mutex_);
  const auto [found, inserted] = index_.emplace(identity, decisions_.size());
  if (inserted) {
    decisions_.push_back(std::move(decision));
  } else {
    decisions_[found->second] = std::move(decision);
  }
}

void AssignmentLog::Fail(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = error;
}

std::string AssignmentLog::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

std::vector<Decision> AssignmentLog::decisions() const {
  std::lock_guard lock(mutex_);
  return decisions_;
}

std::string AssignmentLog::ToJson() const {
  std::lock_guard lock(mutex_);
  std::string out = "[";
  for (const Decision& decision : decisions_) {
    if (out.size() > 1) out += ',';
    out += "{\"node\":" + Quoted(decision.node) + ",\"op_type\":" + Quoted(decision.op_type) +
           ",\"domain\":" + Quoted(decision.domain) + ",\"claimed\":" + (decision.claimed ? "true" : "false") +
           ",\"reason\":" + Quoted(decision.reason) + "}";
  }
  return out + ']';
}

}  // namespace npu::provider
