#include "python/csrc/torch_distributed/exchange.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "ep/runtime/current.h"
#include "ep/runtime/graph.h"

namespace npu::distributed {

Exchange::Exchange(const char* op, c10::Device device, Wire wire)
    : op_(op), device_(device), wire_(wire), ready_(device.type()) {}

namespace {

// Numbers that the transport reduces, or that are converted for it.
bool IsReduced(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
    case at::kComplexDouble:
    case at::kChar:
    case at::kByte:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return true;
    default:
      return false;
  }
}

}  // namespace

Exchange::Tensors Exchange::Stage(const Tensors& tensors, bool sent, bool received) {
  const c10::InferenceMode mode(false);  // the transport's threads, which write them, are outside the caller's
  Tensors wires;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device() == device_, "[hccl] ", op_, " expected tensors on ", device_, ", got one on ",
                tensor.device());
    TORCH_CHECK(tensor.layout() == at::kStrided, "[hccl] ", op_, " expected dense tensors, got layout ",
                tensor.layout());
    TORCH_CHECK(wire_ == Wire::kBytes || IsReduced(tensor.scalar_type()), "[hccl] ", op_,
                " expected floats of 16 bits or more, integers, uint8, bool or complex numbers to reduce, got ",
                tensor.scalar_type(), "; convert the tensor first");
    // Of the tensor's shape for the copies, whose strides are then alike, and flat for the transport.
    Copy copy{tensor.detach(),
              at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true)),
              {},
              sent,
              received};
    copy.wire = copy.host.view({-1});
    if (wire_ == Wire::kBytes) {
      copy.wire = copy.wire.view(at::kByte);
    } else if (tensor.scalar_type() == at::kShort || tensor.scalar_type() == at::kBool) {
      copy.wire = at::empty(copy.wire.sizes(), at::kInt);  // the transport adds neither; true is any number but 0
      copy.converted = true;
    }
    if (sent) copy.host.copy_(copy.tensor, /*non_blocking=*/true);
    wires.push_back(copy.wire);
    copies_.push_back(std::move(copy));
  }
  return wires;
}

void Exchange::Record() {
  const c10::impl::VirtualGuardImpl device(device_.type());
  ready_.record(device.getStream(device_));
}

void Exchange::WaitForInputs() {
  ready_.synchronize();
  for (Copy& copy : copies_) {
    if (copy.converted) copy.wire.copy_(copy.host.view({-1}));
    if (copy.sent && prepare_) prepare_(copy.wire);
  }
}

void Exchange::CopyBack(const std::function<void(at::Tensor&)>& adapt) const {
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream stream = device.getStream(device_);
  for (const Copy& copy : copies_) {
    if (!copy.received) continue;
    at::Tensor wire = copy.wire;
    if (adapt) adapt(wire);
    if (copy.converted) copy.host.view({-1}).copy_(wire);
    copy.tensor.record_stream(stream);
    copy.tensor.copy_(copy.host, /*non_blocking=*/true);
  }
}

Exchange::Tensors Exchange::Outputs() const {
  Tensors outputs;
  for (const Copy& copy : copies_)
    if (copy.received) outputs.push_back(copy.tensor);
  return outputs;
}

std::unique_ptr<Exchange> BeginExchange(const char* op, const at::Tensor& first, Wire wire) {
  TORCH_CHECK(first.device().type() == c10::DeviceType::PrivateUse1, "[hccl] ", op,
              " expected npu tensors, got one on ", first.device(), "; use a group of \"cpu:gloo,npu:hccl\" for both");
  Graph::RefuseInCapture(CurrentStream(first.device().index()), "a collective");
  return std::make_unique<Exchange>(op, first.device(), wire);
}

std::unique_ptr<Exchange> BeginExchange(const char* op, const Exchange::Tensors& tensors, Wire wire) {
  TORCH_CHECK(!tensors.empty(), "[hccl] ", op, " expected at least one tensor, got none");
  return BeginExchange(op, tensors[0], wire);
}

}  // namespace npu::distributed
