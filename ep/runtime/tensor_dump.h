// Writes the inputs and outputs of operators to files, to find where two runs diverge.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

class TensorDump {
 public:
  struct Options {
    std::string path;  // a folder, created if missing
    bool inputs = true, outputs = true;
    std::vector<std::string> ops;  // empty: all
  };

  static bool On() { return on_.load(std::memory_order_relaxed); }
  static void Start(Options options);
  static void Stop();

  // One call of an operator. Files are written in stream order: <path>/<op>.<call>.<input|output>.<i>.npy
  explicit TensorDump(const std::string& op);
  void Inputs(Stream& stream, const std::vector<TensorView>& views) const;
  void Outputs(Stream& stream, const std::vector<TensorView>& views) const;

 private:
  void Write(Stream& stream, const char* role, const std::vector<TensorView>& views) const;

  static std::atomic<bool> on_;
  Options options_;
  std::string prefix_;  // empty: not selected
};

}  // namespace npu
