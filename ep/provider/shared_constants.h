// Constants of a session that several of its nodes read: kept once, in the order that suits the one that would
// otherwise keep a packed copy. An embedding table that is the output projection, too, is a quarter of a small model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ep/provider/device_state.h"
#include "ep/runtime/kernel.h"

namespace npu::provider {

class SharedConstants {
 public:
  // ORT loads the session's own initializers from now on: older memory is somebody else's, whatever ORT says of it.
  explicit SharedConstants(DeviceState& device) : device_(device), first_(device.allocations()) {}

  // While the graph is examined: a constant that `readers` inputs of nodes of any provider read.
  void Expect(const std::string& name, size_t readers);
  // While kernels are made: one of these inputs is `input` of `kernel`.
  void AddReader(const std::string& name, Kernel& kernel, size_t input);
  void RemoveReader(const Kernel& kernel);
  // When the constant is offered to a kernel: whether its readers share it, so that none keeps a copy. The last of them
  // to ask has it brought into order.
  bool Share(const std::string& name, const Kernel& kernel, size_t input, const TensorView& constant);

 private:
  struct Reader {
    Kernel* kernel;
    size_t input;
    const void* data = nullptr;  // that it was offered
  };
  struct Constant {
    size_t expected = 0;
    bool ambiguous = false;  // several constants of this name
    std::vector<Reader> readers;
  };
  bool CanShare(const Constant& constant, const TensorView& view) const;

  DeviceState& device_;
  const uint64_t first_;
  std::map<std::string, Constant> constants_;
};

}  // namespace npu::provider
