// For outputs whose sizes depend on data: the host waits for the launch that counts, and reads its result.
#pragma once

#include <cstdint>

#include "ep/runtime/device.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The int64 at an address of device memory that launches of this context have written. Throws their failure, and in a
// captured run, where nothing has run yet.
inline int64_t ReadBack(OpContext& ctx, const int64_t* value) {
  Device& device = ctx.stream().device();
  ctx.stream().Synchronize();
  int64_t read = 0;
  device.backend().CopyNow(device.index(), &read, value, sizeof read, CopyKind::kDeviceToHost);
  return read;
}

}  // namespace npu
