// The provider's decision about every node offered to it, for onnxruntime_npu.assignment().
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace npu::provider {

struct Decision {
  std::string node, op_type, domain;
  bool claimed = false;
  bool implemented = false;  // left to the CPU on purpose if it is not claimed
  std::string reason;        // why not claimed
  std::string fused_into;    // the operator that computes the node with others, or with its own constants
  std::string frozen_input;  // the input whose first value a replay would keep (see replayable.h)
};

// The decisions of one session. ORT queries again after it transformed the graph; the last decision counts.
class AssignmentLog {
 public:
  void Record(const std::string& identity, Decision decision);
  void Fail(const std::string& error);
  // The error raised while deciding; ORT itself only logs it and continues with the CPU.
  std::string error() const;
  std::vector<Decision> decisions() const;
  std::string ToJson() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, size_t> index_;
  std::vector<Decision> decisions_;
  std::string error_;
};

}  // namespace npu::provider
