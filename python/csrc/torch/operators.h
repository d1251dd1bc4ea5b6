// How operators of npu tensors are registered.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "python/csrc/torch/streams.h"

namespace npu::aten {

inline void FindDevice(const at::Tensor& t, std::optional<int>& device) {
  if (!device && t.defined() && t.is_privateuseone()) device = t.device().index();
}
inline void FindDevice(const std::optional<at::Tensor>& t, std::optional<int>& device) {
  if (t) FindDevice(*t, device);
}
inline void FindDevice(at::TensorList tensors, std::optional<int>& device) {
  for (const at::Tensor& t : tensors) FindDevice(t, device);
}
inline void FindDevice(const at::ITensorListRef& tensors, std::optional<int>& device) {
  for (const at::Tensor& t : tensors) FindDevice(t, device);
}
inline void FindDevice(const c10::List<std::optional<at::Tensor>>& tensors, std::optional<int>& device) {
  for (size_t i = 0; i < tensors.size(); ++i) FindDevice(tensors.get(i), device);
}
template <class T>
void FindDevice(const T&, std::optional<int>&) {}  // holds no tensor

// In scope, the device of the first npu tensor among the arguments is current.
class DeviceOfArguments {
 public:
  template <class... Args>
  explicit DeviceOfArguments(const Args&... args) {
    std::optional<int> device;
    (FindDevice(args, device), ...);
    if (!device || *device == CurrentDevice()) return;
    before_ = CurrentDevice();
    SetCurrentDevice(*device);
  }
  ~DeviceOfArguments() {
    if (before_) SetCurrentDevice(*before_);
  }
  DeviceOfArguments(const DeviceOfArguments&) = delete;
  DeviceOfArguments& operator=(const DeviceOfArguments&) = delete;

 private:
  std::optional<int> before_;
};

// Each operator runs with its tensors' device current, so that scalar operands on the host are copied there.
class Operators {
 public:
  explicit Operators(torch::Library& library) : library_(library) {}

  template <class R, class... Args>
  void impl(const char* name, R (*function)(Args...)) {
    library_.impl(name, [function](Args... args) -> R {
      const DeviceOfArguments device(args...);
      return function(std::forward<Args>(args)...);
    });
  }

 private:
  torch::Library& library_;
};

}  // namespace npu::aten
