#include "ep/runtime/eager_context.h"

#include <utility>

#include "ep/runtime/blocking.h"
#include "ep/runtime/device.h"
#include "ep/runtime/tensor_dump.h"

namespace npu {

EagerContext::EagerContext(Stream& stream, std::vector<TensorView> inputs, size_t output_count, AllocateOutput allocate)
    : stream_(stream), inputs_(std::move(inputs)), outputs_(output_count), allocate_(std::move(allocate)) {}

EagerContext::~EagerContext() {
  // Freed in stream order: the next user of the block runs behind the work that was launched here.
  for (void* workspace : workspaces_) stream_.device().allocator().Free(workspace);
}

void EagerContext::WriteInPlace(size_t output, size_t input) {
  NPU_CHECK(output < outputs_.size() && input < inputs_.size() && inputs_[input].present,
            "expected an output and a present input to be one buffer, got output ", output, " and input ", input);
  outputs_[output].in_place_of = static_cast<int>(input);
}

void EagerContext::Run(const Kernel& kernel, const std::string& op) {
  if (!TensorDump::On()) return kernel.Compute(*this);
  const TensorDump dump(op);
  dump.Inputs(stream_, inputs_);
  kernel.Compute(*this);
  std::vector<TensorView> made;
  for (const OutputState& output : outputs_) made.push_back(output.view);
  dump.Outputs(stream_, made);
}

void EagerContext::RunKept(std::shared_ptr<const Kernel> kernel, const std::string& op) {
  try {
    Run(*kernel, op);
    stream_.Launch("release", [kernel] {});
  } catch (...) {
    // Nothing else keeps the kernel for the work launched so far.
    const MayBlock scope;
    stream_.device().backend().StreamSynchronize(stream_.handle());
    throw;
  }
}

TensorView EagerContext::Output(size_t i, DType dtype, const Shape& shape) {
  if (i >= outputs_.size()) return {};
  OutputState& output = outputs_[i];
  if (output.view.present) {
    NPU_CHECK(output.view.dtype == dtype && output.view.shape == shape, "output ", i, " was already made as ",
              NameOf(output.view.dtype), output.view.shape);
    return output.view;
  }
  if (output.in_place_of >= 0) {
    const TensorView& input = inputs_[output.in_place_of];
    NPU_CHECK(input.dtype == dtype && input.shape == shape, "expected the tensor that is written in place to be ",
              NameOf(dtype), shape, ", got ", NameOf(input.dtype), input.shape);
    output.view = input;
    return output.view;
  }
  for (int64_t dim : shape) NPU_CHECK(dim >= 0, "expected no negative dimension in output ", i, ", got ", shape);
  const int64_t elements = shape.Elements();
  void* data = allocate_(i, dtype, shape);
  if (data == nullptr && elements > 0)
    Fail(ErrorCode::kOutOfMemory, "no memory for output ", i, ": ", NameOf(dtype), shape);
  output.view = TensorView{elements > 0 ? data : nullptr, dtype, true, shape};
  return output.view;
}

void* EagerContext::Workspace(size_t bytes) {
  if (bytes == 0) return nullptr;
  workspaces_.reserve(workspaces_.size() + 1);
  workspaces_.push_back(stream_.device().allocator().Allocate(bytes, stream_));
  return workspaces_.back();
}

}  // namespace npu
