// Constants of a session that several of its nodes read: stored once, in the layout of the kernel that would otherwise
// keep a packed copy. For example, an embedding table that is also the output projection is a quarter of a small model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ep/provider/device_state.h"
#include "ep/runtime/kernel.h"

namespace npu::provider {

class SharedConstants {
 public:
  // ORT loads the session's own initializers from now on: older memory is not this session's, whatever ORT reports.
  explicit SharedConstants(DeviceState& device) : device_(device), first_(device.allocations()) {}

  // Called while the graph is examined: `readers` inputs, of nodes of any provider, read the constant.
  void Expect(const std::string& name, size_t readers);
  // Called while kernels are created: one of these inputs is `input` of `kernel`.
  void AddReader(const std::string& name, Kernel& kernel, size_t input);
  void RemoveReader(const Kernel& kernel);
  // Called when the constant is offered to a kernel: whether its readers share it, so that none keeps a copy. The last
  // of these calls packs it, on `stream`.
  bool Share(const std::string& name, const Kernel& kernel, size_t input, const TensorView& constant, Stream& stream);

 private:
  struct Reader {
    Kernel* kernel;
    size_t input;
    const void* data = nullptr;  // offered to it
  };
  struct Constant {
    size_t expected = 0;
    bool ambiguous = false;  // several constants have this name
    std::vector<Reader> readers;
  };
  bool CanShare(const Constant& constant, const TensorView& view) const;

  DeviceState& device_;
  const uint64_t first_;
  std::map<std::string, Constant> constants_;
};

}  // namespace npu::provider
