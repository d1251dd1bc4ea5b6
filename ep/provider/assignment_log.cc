#include "ep/provider/assignment_log.h"

#include <cstdio>
#include <utility>

namespace npu::provider {
namespace {

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
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
