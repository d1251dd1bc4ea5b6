#include "python/csrc/torch/kernel_call.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <bit>
#include <memory>
#include <utility>

#include "ep/runtime/store_element.h"
#include "ep/runtime/strided_copy.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

at::Tensor MakeDense(const at::Tensor& tensor) {
  CheckWithinStorage(tensor);
  at::Tensor dense = Empty(tensor.sizes(), tensor.scalar_type(), tensor);
  LaunchStridedCopy(StreamOf(tensor), "copy", MakeStridedPair(tensor.sizes(), dense.strides(), tensor.strides()),
                    tensor.element_size(), dense.mutable_data_ptr(), tensor.const_data_ptr());
  return dense;
}

}  // namespace

DType ToDType(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kByte:
      return DType::kUInt8;
    case at::kUInt16:
      return DType::kUInt16;
    case at::kUInt32:
      return DType::kUInt32;
    case at::kUInt64:
      return DType::kUInt64;
    case at::kBool:
      return DType::kBool;
    default:
      return DType::kUndefined;
  }
}

at::ScalarType ToScalarType(DType dtype) {
  for (const at::ScalarType candidate :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kShort, at::kInt, at::kLong, at::kByte,
        at::kUInt16, at::kUInt32, at::kUInt64, at::kBool})
    if (ToDType(candidate) == dtype) return candidate;
  Fail(ErrorCode::kInternal, "a kernel made ", NameOf(dtype), ", which torch tensors cannot hold");
}

at::Tensor ScalarTensor(const c10::Scalar& value, at::ScalarType dtype, const at::Tensor& beside) {
  at::Tensor scalar = Empty({}, dtype, beside);
  const auto send = [&]<class T>(T element) {
    StoreElement(StreamOf(scalar), scalar.mutable_data_ptr(), &element, sizeof(T));
  };
  switch (dtype) {
#define NPU_SEND(T, name)    \
  case at::ScalarType::name: \
    send(value.to<T>());     \
    break;
    AT_FORALL_SCALAR_TYPES_AND7(Half, BFloat16, Bool, UInt16, UInt32, UInt64, Float8_e4m3fn, NPU_SEND)
    NPU_SEND(c10::Float8_e5m2, Float8_e5m2)
    NPU_SEND(c10::Float8_e4m3fnuz, Float8_e4m3fnuz)
    NPU_SEND(c10::Float8_e5m2fnuz, Float8_e5m2fnuz)
    NPU_SEND(c10::Float8_e8m0fnu, Float8_e8m0fnu)
    NPU_SEND(c10::complex<c10::Half>, ComplexHalf)
    NPU_SEND(c10::complex<float>, ComplexFloat)
    NPU_SEND(c10::complex<double>, ComplexDouble)
#undef NPU_SEND
    default:
      TORCH_CHECK(false, "expected a number that an npu tensor can hold, got ", dtype);
  }
  return scalar;
}

at::Tensor Dense(const at::Tensor& tensor, at::ScalarType dtype) {
  if (IsHostScalar(tensor)) {
    at::Tensor sent = at::empty({}, at::TensorOptions(dtype).device(DeviceAt(CurrentDevice())));
    return sent.copy_(tensor);
  }
  TORCH_CHECK(tensor.is_privateuseone(),
              "Expected all tensors to be on the same device, but found at least two "
              "devices, npu:",
              CurrentDevice(), " and ", tensor.device(), "!");
  if (dtype != tensor.scalar_type() && tensor.is_complex()) return tensor.to(dtype).contiguous();  // no kernel has it
  const at::Tensor dense = tensor.is_contiguous() ? tensor : MakeDense(tensor);
  if (dtype == tensor.scalar_type()) return dense;
  return KernelCall("Cast").In(dense).Set("to", static_cast<int64_t>(ToDType(dtype))).One();
}

bool KernelCall::Takes(size_t input, at::ScalarType dtype) const {
  const DType wanted = ToDType(dtype);
  const std::vector<ArgDef>& inputs = kernels_.def().inputs;
  return wanted != DType::kUndefined && input < inputs.size() && inputs[input].dtypes.Contains(wanted);
}

KernelCall& KernelCall::In(const at::Tensor& tensor, at::IntArrayRef shape) {
  TORCH_CHECK(tensors_.empty() || tensors_[0].device() == tensor.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", tensors_[0].device(),
              " and ", tensor.device(), "!");
  return Push(tensor, shape);
}

KernelCall& KernelCall::Push(const at::Tensor& tensor, at::IntArrayRef shape) {
  CheckWithinStorage(tensor);
  TensorView view;
  view.dtype = ToDType(tensor.scalar_type());
  view.shape = Shape(shape.data(), shape.size());
  view.data = tensor.numel() > 0 ? const_cast<void*>(tensor.const_data_ptr()) : nullptr;
  view.present = true;
  inputs_.push_back(view);
  tensors_.push_back(tensor);
  return *this;
}

KernelCall& KernelCall::In(const at::Tensor& tensor) { return In(tensor, tensor.sizes()); }

KernelCall& KernelCall::OnHost(const at::Tensor& tensor) { return Push(tensor, tensor.sizes()); }

KernelCall& KernelCall::Absent() {
  inputs_.emplace_back();
  return *this;
}

KernelCall& KernelCall::Host(std::vector<int64_t> values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  lists_.push_back(std::move(values));
  inputs_.push_back({lists_.back().empty() ? nullptr : lists_.back().data(), DType::kInt64, true, shape});
  return *this;
}

KernelCall& KernelCall::HostScalar(int64_t value) {
  Host({value});
  inputs_.back().shape = Shape{};
  return *this;
}

KernelCall& KernelCall::HostScalar(double value) {
  HostScalar(std::bit_cast<int64_t>(value));
  inputs_.back().dtype = DType::kFloat64;
  return *this;
}

KernelCall& KernelCall::Set(const char* name, Attributes::Value value) {
  attributes_.emplace_back(name, std::move(value));
  return *this;
}

KernelCall& KernelCall::WriteOver(size_t output, size_t input) {
  written_over_.emplace_back(output, input);
  return *this;
}

void KernelCall::Run(size_t outputs, int device, const EagerContext::AllocateOutput& allocate) {
  const auto [kernel, lasting] = kernels_.Find(attributes_, inputs_.size(), outputs);
  EagerContext context(CurrentStream(device), std::move(inputs_), outputs, allocate);
  for (const auto& [output, input] : written_over_) context.WriteInPlace(output, input);
  const std::string& type = kernels_.def().type;
  try {
    lasting ? context.Run(*kernel, type) : context.RunKept(kernel, type);
  } catch (const Error& error) {  // a workspace had no memory: scripts expect the same type as of tensors
    TORCH_CHECK_WITH(OutOfMemoryError, error.code() != ErrorCode::kOutOfMemory, error.what());
    throw;
  }
}

// Whether output `output` must not be written to `out`, because `out` overlaps an input of this kernel.
bool KernelCall::Overlaps(const at::Tensor& out, size_t output) const {
  for (size_t i = 0, t = 0; i < inputs_.size(); ++i) {
    const bool in_tensor = t < tensors_.size() && inputs_[i].present && inputs_[i].data == tensors_[t].const_data_ptr();
    if (!in_tensor) continue;
    const at::Tensor& input = tensors_[t++];
    if (!input.is_alias_of(out)) continue;
    const bool same = input.const_data_ptr() == out.const_data_ptr() && input.sizes() == out.sizes() &&
                      input.scalar_type() == out.scalar_type();
    bool allowed = false;
    for (const auto& [from, to] : kernels_.def().may_alias)
      allowed |= static_cast<size_t>(from) == i && static_cast<size_t>(to) == output;
    if (!same || !allowed) return true;
  }
  return false;
}

void KernelCall::Into(at::TensorList outs) {
  c10::SmallVector<at::Tensor, 2> targets(outs.begin(), outs.end());
  for (size_t i = 0; i < outs.size(); ++i) {
    CheckWithinStorage(outs[i]);
    if (!outs[i].is_contiguous() || Overlaps(outs[i], i))
      targets[i] = Empty(outs[i].sizes(), outs[i].scalar_type(), outs[i]);
  }
  Run(outs.size(), outs[0].device().index(), [&](size_t i, DType dtype, const Shape& shape) -> void* {
    const at::Tensor& out = outs[i];
    if (dtype != ToDType(out.scalar_type())) targets[i] = Empty(out.sizes(), ToScalarType(dtype), out);
    TORCH_INTERNAL_ASSERT(shape.Elements() == out.numel(), kernels_.def().type,
                          " made another shape than torch expects");
    return targets[i].mutable_data_ptr();
  });
  for (size_t i = 0; i < outs.size(); ++i)
    if (!targets[i].is_same(outs[i])) const_cast<at::Tensor&>(outs[i]).copy_(targets[i]);
}

std::vector<at::Tensor> KernelCall::Run(size_t outputs, const at::Tensor* beside) {
  TORCH_INTERNAL_ASSERT(beside != nullptr || !tensors_.empty(), kernels_.def().type, " was called beside no tensor");
  const at::Tensor near = beside != nullptr ? *beside : tensors_[0];
  std::vector<at::Tensor> results(outputs);
  Run(outputs, near.device().index(), [&](size_t i, DType dtype, const Shape& shape) -> void* {
    results[i] = Empty(at::IntArrayRef(shape.begin(), static_cast<size_t>(shape.rank())), ToScalarType(dtype), near);
    return results[i].mutable_data_ptr();
  });
  return results;
}

}  // namespace npu::aten
