#include "ep/runtime/backend_extensions.h"

#include "ep/runtime/error.h"

namespace npu {

BackendExtensions& BackendExtensions::Of(Backend& backend) {
  auto* extensions = dynamic_cast<BackendExtensions*>(&backend);
  if (extensions == nullptr)
    Fail(ErrorCode::kUnsupported, "the ", backend.name(),
         " backend has no expandable segments, blocking streams or abort");
  return *extensions;
}

}  // namespace npu
