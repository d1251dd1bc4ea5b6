// A kernel of the runtime in a session: how it finds its arguments and takes part in runs. The kernels of single nodes
// and those of fused nodes are such.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"
#include "ep/runtime/kernel.h"

namespace npu::provider {

// A kernel's arguments as known when it is created; Compute only reads it.
struct Signature {
  // Of an input that onnxruntime does not pass: it is one of `constants`.
  static constexpr size_t kOwnConstant = static_cast<size_t>(-1);

  std::string op;  // "Add": what error messages start with
  size_t input_count = 0, output_count = 0;
  std::vector<std::string> input_names;
  std::vector<bool> input_absent;           // an empty constant for an optional input, or none
  std::vector<bool> input_packed;           // the kernel keeps its own packed form
  std::vector<bool> output_requested;       // the node names the output
  std::vector<size_t> input_at, output_at;  // where onnxruntime passes them
  std::vector<TensorView> constants;        // per input
};

// The runtime's dtype; throws if it has none.
DType CheckedDType(const Signature& signature, ONNXTensorElementDataType type);

class SessionKernel {
 public:
  // `graphs` may be null. `host_memory`: see Options.
  SessionKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs,
                std::shared_ptr<SessionGraphs> graphs, bool host_memory, Signature signature,
                std::unique_ptr<Kernel> kernel);
  ~SessionKernel();
  SessionKernel(const SessionKernel&) = delete;
  SessionKernel& operator=(const SessionKernel&) = delete;

  // Enqueues the node's work.
  void Compute(OrtKernelContext* context) const;

  Kernel& kernel() const { return *kernel_; }
  Signature& signature() { return signature_; }

  // Every message starts with the operator; kernels write it themselves, but the runtime does not know it.
  template <class F>
  void Named(F&& f) const {
    try {
      f();
    } catch (const Error& error) {
      if (*error.what() == '[') throw;
      throw Error(error.code(), "[" + signature_.op + "] " + error.what());
    }
  }

 private:
  const Api& api_;
  DeviceState& device_;
  const std::shared_ptr<SessionRuns> runs_;
  const std::shared_ptr<SessionGraphs> graphs_;
  const bool host_memory_;
  Signature signature_;
  std::shared_ptr<Kernel> kernel_;
};

}  // namespace npu::provider
