// Copies: between devices and the host, between layouts, between element types.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ep/runtime/graph.h"
#include "ep/runtime/pinned_memory.h"
#include "ep/runtime/staged_copy.h"
#include "ep/runtime/strided_copy.h"
#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"
#include "python/csrc/torch/sync_debug.h"

namespace npu::aten {
namespace {

// Copies from pageable memory up to this size are held by the launch, so that the host does not wait.
constexpr size_t kStagedBytes = 64 << 10;

bool SameLayout(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;  // strides of dimensions of size 1 may differ
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

// Two npu tensors of one shape and type, on `stream`.
void CopyElements(const at::Tensor& to, const at::Tensor& from, Stream& stream) {
  CheckWithinStorage(to);
  CheckWithinStorage(from);
  if (SameLayout(to, from)) {
    stream.Copy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(), CopyKind::kDeviceToDevice);
  } else {
    LaunchStridedCopy(stream, "copy", MakeStridedPair(to.sizes(), to.strides(), from.strides()), to.element_size(),
                      to.mutable_data_ptr(), from.const_data_ptr());
  }
}

// `tensor` in another dtype, dense, on its own device. Complex numbers are converted by their parts; types without
// kernels by the host, which can access the memory.
at::Tensor Convert(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_complex() && at::isFloatingType(dtype)) return Dense(ComplexParts::Of(tensor).re, dtype);
  if (at::isComplexType(dtype) && (tensor.is_complex() || ToDType(tensor.scalar_type()) != DType::kUndefined)) {
    at::Tensor out = Empty(tensor.sizes(), dtype, tensor);
    return ComplexParts::Of(tensor, dtype, tensor).Into(out);
  }
  if (ToDType(dtype) != DType::kUndefined && ToDType(tensor.scalar_type()) != DType::kUndefined)
    return Dense(tensor, dtype);
  return tensor.cpu().to(dtype).to(tensor.device());
}

void BetweenDevices(const at::Tensor& to, const at::Tensor& from) {
  Stream& sender = StreamOf(from);
  Stream& receiver = StreamOf(to);
  if (&sender == &receiver) return CopyElements(to, from, sender);
  // Order: the target's earlier work, the copy, the target's later work.
  Event ready(Runtime::Instance().backend()), done(Runtime::Instance().backend());
  ready.Record(receiver);
  sender.Wait(ready);
  CopyElements(to, from, sender);
  done.Record(sender);
  receiver.Wait(done);
}

void ToDevice(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  Stream& stream = StreamOf(to);
  if (!SameLayout(to, from)) {
    const at::Tensor host = from.contiguous();
    at::Tensor staging = to.is_contiguous() ? to : Empty(to.sizes(), to.scalar_type(), to);
    ToDevice(staging, host, non_blocking && host.is_same(from));
    if (!staging.is_same(to)) CopyElements(to, staging, stream);
    return;
  }
  CheckWithinStorage(to);
  const size_t bytes = to.nbytes();
  if (non_blocking && PinnedMemory::Instance().Contains(from.const_data_ptr())) {
    stream.Copy(to.mutable_data_ptr(), from.const_data_ptr(), bytes, CopyKind::kHostToDevice);
    PinnedMemory::Instance().RecordUse(from.const_data_ptr(), stream);
    return;
  }
  // A 0-dimensional tensor is passed by value, like a kernel's argument. Other memory may no longer exist when a replay
  // reads it.
  if (from.dim() > 0)
    Graph::RefuseInCapture(stream,
                           "a copy from host memory that is not pinned, or that waits; make the tensor with "
                           "pin_memory() and copy it with non_blocking=True");
  if (bytes <= kStagedBytes) {
    LaunchStagedCopy(stream, to.mutable_data_ptr(), from.const_data_ptr(), bytes);
  } else {
    BeforeImplicitSync();
    stream.Copy(to.mutable_data_ptr(), from.const_data_ptr(), bytes, CopyKind::kHostToDevice);
    stream.Synchronize();
  }
}

void ToHost(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!SameLayout(to, from)) {
    const at::Tensor dense = from.is_contiguous() ? from : Dense(from);
    const at::Tensor host = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
    ToHost(host, dense, non_blocking && host.is_same(to));
    if (!host.is_same(to)) const_cast<at::Tensor&>(to).copy_(host);
    return;
  }
  CheckWithinStorage(from);
  Stream& stream = StreamOf(from);
  const bool waits = !non_blocking || !PinnedMemory::Instance().Contains(to.const_data_ptr());
  if (waits) BeforeImplicitSync();
  stream.Copy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(), CopyKind::kDeviceToHost);
  if (waits) {
    stream.Synchronize();
  } else {
    PinnedMemory::Instance().RecordUse(to.const_data_ptr(), stream);
  }
}

// `from` on the host, in a tensor whose conjugate and negative bits are those of `to`.
at::Tensor SameBits(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor host = at::empty(from.sizes(), at::TensorOptions(from.scalar_type()).device(at::kCPU));
  host._set_conj(from.is_conj());
  host._set_neg(from.is_neg());
  host.copy_(from);
  host = host.resolve_conj().resolve_neg();
  if (to.is_neg()) {
    host = host.neg();
    host._set_neg(true);
  }
  if (to.is_conj()) {
    host = at::conj_physical(host);
    host._set_conj(true);
  }
  return host;
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0 || to.is_same(from)) return to;
  const at::Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  const at::ScalarType dtype = to.scalar_type();
  if (source.is_conj() != to.is_conj() || source.is_neg() != to.is_neg()) {
    // The bits are part of the value; if they differ, the elements are converted on the host.
    const at::Tensor host = SameBits(source, to);
    CopyFrom(host, to, non_blocking);
    return to;
  }
  if (source.scalar_type() != dtype) {
    // Converted on the source's side.
    at::Tensor same = source.is_cpu() ? source.to(dtype) : Convert(source, dtype);
    CopyFrom(same, to, non_blocking);
    return to;
  }
  if (source.is_privateuseone() && to.is_privateuseone()) {
    BetweenDevices(to, source);
  } else if (to.is_privateuseone()) {
    TORCH_CHECK(source.is_cpu(), "expected a copy from the CPU or an npu, got ", source.device());
    ToDevice(to, source, non_blocking);
  } else {
    TORCH_CHECK(to.is_cpu(), "expected a copy to the CPU or an npu, got ", to.device());
    ToHost(to, source, non_blocking);
  }
  return to;
}

// The order in which elements are written is undefined, as on other devices.
at::Tensor CopyWithoutOverlap(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::assert_no_internal_overlap(to);
  at::assert_no_partial_overlap(to, from);
  return CopyFrom(from, to, non_blocking);
}

at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());  // a view of the right size stays a view
  return CopyFrom(from, to, false);
}

c10::Scalar LocalScalar(const at::Tensor& self) {
  at::Tensor host = at::empty({}, at::TensorOptions(self.scalar_type()).device(at::kCPU));
  CopyFrom(self.reshape({}), host, false);
  return host.item();
}

at::Tensor& FillScalar(at::Tensor& self, const c10::Scalar& value) {
  if (self.numel() == 0) return self;
  const at::Tensor element = ScalarTensor(value, self.scalar_type(), self);
  CopyElements(self, element.expand(self.sizes()), StreamOf(self));
  return self;
}

at::Tensor& FillTensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.is_cpu()) return FillScalar(self, value.item());
  if (self.numel() > 0) CopyFrom(value, self, false);
  return self;
}

at::Tensor& Zero(at::Tensor& self) {
  if (!self.is_non_overlapping_and_dense()) return FillScalar(self, 0);
  CheckWithinStorage(self);
  if (self.numel() > 0) StreamOf(self).Memset(self.mutable_data_ptr(), 0, self.nbytes());
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_copy_from", &CopyWithoutOverlap);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalar);
  m.impl("fill_.Scalar", &FillScalar);
  m.impl("fill_.Tensor", &FillTensor);
  m.impl("zero_", &Zero);
}

// Otherwise torch would resolve the bits by a copy, which ends up here again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace npu::aten
