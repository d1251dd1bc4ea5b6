// A backend for tests, ORT_NPU_BACKEND=null: device memory is address space only, and launches and copies do nothing.
// Order, events, streams, callbacks and replays are the host backend's; so are the kernel libraries, which check, infer
// and allocate.
#include <cstring>
#include <utility>

#include "ep/runtime/backend_registry.h"
#include "ep/runtime/host/guarded_backend.h"

namespace npu {
namespace {

class NullBackend final : public GuardedBackend {
 public:
  using GuardedBackend::GuardedBackend;

  const char* name() const override { return "null"; }

  // The closure, and everything it keeps, exists until its turn.
  void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) override {
    HostBackend::Launch(stream, op, Task([kept = std::move(task)] {}), held_bytes);
  }
  void RunCaptured(Task&) override {}
  // The host gets zeros, so that a program which reads copied data behaves the same in every run.
  void CopyInTask(void* dst, const void*, size_t bytes, CopyKind kind) override {
    if (kind == CopyKind::kDeviceToHost) std::memset(dst, 0, bytes);
  }
  void FillInTask(void*, int, size_t) override {}
};

[[maybe_unused]] const bool registered_null = RegisterBackend({
    .name = "null",
    .kernels = "host",
    .make = []() -> std::unique_ptr<Backend> {
      return std::make_unique<NullBackend>(HostOptionsFromEnvironment("Null NPU"));
    },
});

}  // namespace
}  // namespace npu
