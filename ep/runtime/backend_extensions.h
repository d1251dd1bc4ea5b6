// Optional features of a backend. A separate interface, so that kernels and front ends which need only the basics do
// not depend on it.
#pragma once

#include <cstddef>
#include <string>

#include "ep/runtime/backend.h"

namespace npu {

class BackendExtensions {
 public:
  virtual ~BackendExtensions() = default;

  // Address space without memory, for segments that grow; null when there is none.
  virtual void* ReserveAddresses(int device, size_t bytes) = 0;
  virtual void ReleaseAddresses(void* ptr, size_t bytes) = 0;
  // Maps memory to a range of it; false when the device has no more.
  virtual bool MapDevice(int device, void* ptr, size_t bytes) = 0;
  virtual void UnmapDevice(int device, void* ptr, size_t bytes) = 0;

  // Synchronous copies and fills, called by tasks: a captured copy uses them in a replay.
  virtual void CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  virtual void FillInTask(void* dst, int value, size_t bytes) = 0;
  // Launches on the stream return when their work is done. To be called before its first use.
  virtual void MakeBlocking(BackendStream* stream) = 0;
  // Drops the work queued on the stream; the next synchronize reports `reason`.
  virtual void AbortStream(BackendStream* stream, const std::string& reason) = 0;

  // Throws Error(kUnsupported) when the backend has none.
  static BackendExtensions& Of(Backend& backend);
};

}  // namespace npu
