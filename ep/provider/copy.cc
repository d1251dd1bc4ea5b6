#include "ep/provider/copy.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "ep/provider/allocator.h"
#include "ep/provider/session_runs.h"
#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/file_pages.h"
#include "ep/runtime/pinned_memory.h"

namespace npu::provider {
namespace {

// Up to this size, a private copy of the source is cheaper than waiting for the stream.
constexpr size_t kStagedBytes = 64 * 1024;
// At most this much of a source that is a mapped file is resident.
constexpr size_t kResidentBytes = size_t{16} << 20;

// An initializer is stored in a mapped file, and an embedding table may be a quarter of the model: without this it
// would be in memory twice while it is copied.
void UploadReleasing(Device& device, void* dst, const void* src, size_t bytes) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  while (bytes > kResidentBytes) {
    device.backend().CopyNow(device.index(), to, from, kResidentBytes, CopyKind::kHostToDevice);
    ReleaseFilePages(from, kResidentBytes);
    to += kResidentBytes;
    from += kResidentBytes;
    bytes -= kResidentBytes;
  }
  device.backend().CopyNow(device.index(), to, from, bytes, CopyKind::kHostToDevice);
}

// If the host memory `pinned` is pinned, enqueues the copy, keeps that memory until the copy is done and returns true.
bool CopyPinned(Stream& stream, const void* pinned, void* dst, const void* src, size_t bytes, CopyKind kind) {
  PinnedMemory& memory = PinnedMemory::Instance();
  if (!memory.Contains(pinned)) return false;
  stream.Copy(dst, src, bytes, kind);
  memory.RecordUse(pinned, stream);
  return true;
}

// ORT may pass pageable memory to the next CPU kernel as soon as this returns.
void CopyFromHost(Stream& stream, void* dst, const void* src, size_t bytes) {
  if (CopyPinned(stream, src, dst, src, bytes, CopyKind::kHostToDevice)) return;
  Graph::RefuseInCapture(stream, "a copy from host memory that is not pinned");
  if (bytes > kStagedBytes) {
    stream.Copy(dst, src, bytes, CopyKind::kHostToDevice);
    stream.Synchronize();
    return;
  }
  auto staging = std::make_unique<std::byte[]>(bytes);
  std::memcpy(staging.get(), src, bytes);
  BackendExtensions& extensions = BackendExtensions::Of(stream.device().backend());
  auto copy = [=, &extensions, staged = std::move(staging)] {
    extensions.CopyInTask(dst, staged.get(), bytes, CopyKind::kHostToDevice);
  };
  stream.Launch("copy", std::move(copy), /*held_bytes=*/bytes);  // one task, which owns its source
}

}  // namespace

void WaitForThread(DeviceState& device) {
  if (!device.CapturesHere()) SessionRuns::SettleCurrent(device.device());
  device.WaitForCaller();
}

void CopyBytes(DeviceState& device, Stream* stream, void* dst, Place to, const void* src, Place from, size_t bytes) {
  if (bytes == 0 || dst == src) return;
  if (dst == nullptr || src == nullptr) {
    const std::string why = TakeAllocationError();
    if (!why.empty()) Fail(ErrorCode::kOutOfMemory, "[Memcpy] ", why);
    Fail(ErrorCode::kInvalidArgument, "[Memcpy] expected memory of ", bytes, " bytes on both sides, got none");
  }
  const bool to_host = to != Place::kDevice;
  if (to_host && from != Place::kDevice) {
    // Copies in flight may still write the source or read the target.
    if (stream == nullptr) {
      WaitForThread(device);
    } else if (!device.CapturesHere()) {
      stream->Synchronize();
    }
    std::memcpy(dst, src, bytes);
    return;
  }
  // Onnxruntime makes these copies around a run, and a replay would not repeat them.
  NPU_CHECK(
      !device.CapturesHere(), "[graph] expected inputs and outputs bound in NPU memory, got one in host memory: ",
      "with enable_npu_graph, bind OrtValues on 'npu' through IOBinding and update their content in place, or run ",
      "with the run option gpu_graph_id=-1");
  const CopyKind kind = to_host                  ? CopyKind::kDeviceToHost
                        : from == Place::kDevice ? CopyKind::kDeviceToDevice
                                                 : CopyKind::kHostToDevice;
  if (stream == nullptr) {
    // Waking a stream's thread for a few bytes, and waiting for it, takes longer than the copy.
    WaitForThread(device);
    if (kind == CopyKind::kHostToDevice) {
      UploadReleasing(device.device(), dst, src, bytes);
    } else {
      device.device().backend().CopyNow(device.device().index(), dst, src, bytes, kind);
    }
  } else if (kind == CopyKind::kHostToDevice) {
    CopyFromHost(*stream, dst, src, bytes);
  } else if (to != Place::kPinned || !CopyPinned(*stream, dst, dst, src, bytes, kind)) {
    stream->Copy(dst, src, bytes, kind);
    if (to_host) stream->Synchronize();
  }
}

TensorType CopiedType(const Api& api, const OrtValue* value) {
  int is_tensor = 0;
  api.Check(api.ort.IsTensor(value, &is_tensor));
  NPU_CHECK(is_tensor != 0, "[Memcpy] expected a tensor, got another kind of value; it cannot live on the NPU");
  TensorType type;
  api.Check(api.ort.GetTensorElementTypeAndShapeDataReference(value, &type.element, &type.dims, &type.rank));
  return type;
}

void CopyTensor(const Api& api, DeviceState& device, Stream* stream, const OrtValue* src, Place from, OrtValue* dst,
                Place to) {
  NPU_CHECK(CopiedType(api, src).element != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
            "[Memcpy] expected a tensor of a fixed-size type, got strings; they cannot live on the NPU");
  size_t bytes = 0, room = 0;
  api.Check(api.ort.GetTensorSizeInBytes(src, &bytes));
  api.Check(api.ort.GetTensorSizeInBytes(dst, &room));
  NPU_CHECK(bytes == room, "[Memcpy] expected a destination of ", bytes, " bytes, got ", room);
  const void* from_data = nullptr;
  void* to_data = nullptr;
  api.Check(api.ort.GetTensorData(src, &from_data));
  api.Check(api.ort.GetTensorMutableData(dst, &to_data));
  CopyBytes(device, stream, to_data, to, from_data, from, bytes);
}

}  // namespace npu::provider
