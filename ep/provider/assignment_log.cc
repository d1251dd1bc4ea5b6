#include "ep/provider/assignment_log.h"

#include <utility>

#include "ep/runtime/error.h"

namespace npu::provider {
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
    out += "{\"node\":" + JsonString(decision.node) + ",\"op_type\":" + JsonString(decision.op_type) +
           ",\"domain\":" + JsonString(decision.domain) + ",\"claimed\":" + (decision.claimed ? "true" : "false") +
           ",\"reason\":" + JsonString(decision.reason) + ",\"fused_into\":" + JsonString(decision.fused_into) +
           ",\"frozen_input\":" + JsonString(decision.frozen_input) +
           ",\"implemented\":" + (decision.implemented ? "true" : "false") + "}";
  }
  return out + ']';
}

}  // namespace npu::provider
