// Factories, views and resizing.
#include "python/csrc/torch/storage.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "ep/runtime/graph.h"
#include "ep/runtime/log.h"
#include "ep/runtime/pinned_memory.h"
#include "ep/runtime/worker_thread.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {

void ResizeStorage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr grown = storage.allocator()->allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0)
    CurrentStream(storage.device().index()).Copy(grown.get(), storage.data(), kept, CopyKind::kDeviceToDevice);
  storage.set_data_ptr_noswap(std::move(grown));
  storage.set_nbytes(bytes);
}

void CheckWithinStorage(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  int64_t end = tensor.storage_offset() + 1;
  if (tensor.is_contiguous()) {
    end += tensor.numel() - 1;
  } else {
    for (int64_t d = 0; d < tensor.dim(); ++d) end += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto held = static_cast<int64_t>(tensor.storage().nbytes());
  const auto bytes = end * static_cast<int64_t>(tensor.element_size());
  TORCH_CHECK(bytes <= held, "[npu] expected a storage of ", bytes, " bytes or more behind a tensor of sizes ",
              tensor.sizes(), " and strides ", tensor.strides(), ", got ", held,
              ": untyped_storage().resize_() has freed them; resize it back before the tensor is used");
}

namespace {

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

c10::Device Resolve(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? *device : DeviceAt(CurrentDevice());
}

void CheckOptions(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "expected the strided layout for an npu tensor, got ",
              layout.value_or(at::kStrided));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// With torch.utils.deterministic.fill_uninitialized_memory, new memory is filled with NaN or the max integer.
bool FillsNewMemory() {
  return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory();
}
at::Tensor Filled(at::Tensor tensor) {
  if (C10_UNLIKELY(FillsNewMemory())) at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor EmptyMemoryFormat(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<c10::Device> device,
                             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  CheckOptions(layout, pin_memory);
  const c10::DeviceGuard guard(Resolve(device));
  return Filled(at::detail::empty_generic(size, c10::GetAllocator(kNpu), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<c10::Device> device,
                        std::optional<bool> pin_memory) {
  CheckOptions(layout, pin_memory);
  const c10::DeviceGuard guard(Resolve(device));
  return Filled(
      at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kNpu), kKeys, c10::dtype_or_default(dtype)));
}

// torch recommends the jagged layout, whose tensors are pairs of dense ones and work here; no kernel walks lists of
// matrices. A RuntimeError: after a NotImplementedError jagged tensors try another call, whose error misleads.
at::Tensor NestedTensor(at::TensorList, std::optional<at::ScalarType>, std::optional<at::Layout>,
                        std::optional<c10::Device>, std::optional<bool>) {
  TORCH_CHECK(false,
              "npu has no nested tensors of strided layout, with which torch also computes attention of jagged ones: "
              "use layout=torch.jagged, and for attention padded tensors with a mask");
}

void CheckNotNegative(const char* what, at::IntArrayRef values) {
  for (const int64_t value : values) TORCH_CHECK(value >= 0, "expected no negative ", what, ", got ", values);
}

const at::Tensor& Resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  CheckNotNegative("dimension", size);
  TORCH_CHECK(format != at::MemoryFormat::Preserve, "Unsupported memory format ", at::MemoryFormat::Preserve);
  // A tensor that has the shape keeps its strides, as on other devices: `out=x[:, :2]` writes those columns of x.
  if (self.sizes() == size) {
    if (format.has_value()) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
    return self;
  }
  // Memory is allocated first, so that the tensor keeps its shape if that fails.
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(),
                                                                  static_cast<size_t>(self.storage_offset()));
  const auto old_bytes = static_cast<int64_t>(self.storage().nbytes());
  const bool empty = std::find(size.begin(), size.end(), 0) != size.end();
  if (!empty && bytes > self.storage().nbytes()) ResizeStorage(*self.storage().unsafeGetStorageImpl(), bytes);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->generic_set_sizes_contiguous(size);
  if (format.has_value()) impl->empty_tensor_restride(*format);
  if (C10_UNLIKELY(FillsNewMemory())) at::native::fill_resize_deterministic_(self, old_bytes);
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  CheckNotNegative("dimension", size);
  CheckNotNegative("stride", stride);
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(stride.empty() || stride.size() == size.size(), "mismatch in length of strides and shape: got ", stride,
              " and ", size);
  TORCH_CHECK(source.device() == self.device(), "expected storage on ", self.device(), ", got ", source.device());
  at::native::checkInBoundsForStorage<int64_t>(size, stride.empty() && !size.empty() ? at::IntArrayRef() : stride,
                                               offset, self.dtype(), source);
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  }
  return self;
}

at::Tensor& SetWholeStorage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return SetStorage(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& SetTensor(at::Tensor& self, const at::Tensor& source) {
  return SetStorage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& SetEmpty(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage empty(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(kNpu)->allocate(0), c10::GetAllocator(kNpu),
                    /*resizable=*/true);
  return SetStorage(self, std::move(empty), 0, {0}, {1});
}

void RecordStream(at::Tensor& self, at::Stream stream) { RecordUse(self.storage().data(), self.device(), stream); }

// Streams may have used the memory without a record, and so may a graph that is being captured.
void FreeSwappedMemory(void* address, int device) noexcept {
  if (InForkedChild()) return;
  PinnedMemory& memory = PinnedMemory::Instance();
  try {
    memory.RecordUse(address, CurrentStream(device));
    Runtime::Instance().device(device).RecordBusyStreams(address);
    memory.Free(address);
  } catch (const std::exception& e) {
    NPU_LOG(kError, "swapped memory is kept, because its users are unknown: ", e.what());
  }
}

// Host memory that the device can access and that does not count against the device's limit: on the host NPU both are
// one memory, so it is not slower.
at::Tensor EmptyWithSwappedMemory(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                  std::optional<c10::Device> device) {
  CheckNotNegative("dimension", size);
  const c10::DeviceGuard guard(Resolve(device));
  const c10::Device here = DeviceAt(CurrentDevice());
  const at::ScalarType type = c10::dtype_or_default(dtype);
  PinnedMemory& memory = PinnedMemory::Instance();
  void* address =
      memory.Allocate(std::max<size_t>(at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type)), 1));
  Stream& stream = CurrentStream(here.index());
  if (Graph::IsCapturing(stream))
    memory.RecordUse(address, stream);  // like all memory allocated in a capture, it is the graph's
  return Filled(at::for_blob(address, size)
                    .deleter([device = here.index()](void* memory) { FreeSwappedMemory(memory, device); })
                    .options(at::TensorOptions(type).device(here))
                    .target_device(here)
                    .make_tensor());
}

// torch makes nested tensors of strided layout from lists in host memory, too. No operator takes them, but autograd
// asks their sizes before it calls one, where an error would end the process.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", &at::native::_nested_tensor_size);
}

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def("empty_with_swapped_memory(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(EmptyWithSwappedMemory)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("empty.memory_format", &EmptyMemoryFormat);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_nested_tensor_from_tensor_list", &NestedTensor);
  m.impl("resize_", &Resize);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("set_.source_Storage", &SetWholeStorage);
  m.impl("set_.source_Tensor", &SetTensor);
  m.impl("set_", &SetEmpty);
  m.impl("record_stream", &RecordStream);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}

}  // namespace

at::Tensor Empty(at::IntArrayRef size, at::ScalarType dtype, const at::Tensor& beside) {
  const c10::DeviceGuard guard(beside.device());  // a kernel writes it: no filling
  return at::detail::empty_generic(size, c10::GetAllocator(kNpu), kKeys, dtype, std::nullopt);
}

}  // namespace npu::aten
