// Reads a byte of device memory by a copy: a test is host code, which must not touch a device address.
#pragma once

#include "ep/runtime/backend.h"

namespace npu::test {

inline char ReadByte(Backend& backend, const void* address) {
  char value = 0;
  backend.CopyNow(/*device=*/0, &value, address, 1, CopyKind::kDeviceToHost);
  return value;
}

inline void WriteByte(Backend& backend, void* address, char value) {
  backend.CopyNow(/*device=*/0, address, &value, 1, CopyKind::kHostToDevice);
}

}  // namespace npu::test
