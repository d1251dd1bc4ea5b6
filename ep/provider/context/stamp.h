// What the packed constants of a compiled model depend on: they fit only where both stamps are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ep/runtime/backend.h"

namespace npu::provider {

struct ContextStamp {
  std::string version;       // of the package
  std::string architecture;  // the kernels' backend and instructions

  bool operator==(const ContextStamp&) const = default;
  // As onnxruntime keeps it in the metadata of the model.
  std::string Text() const { return version + ' ' + architecture; }
};

// That of this process.
ContextStamp StampOf(const Backend& backend);

// Finds damage, not forgery: 64 bits of all bytes, at the speed of memory.
uint64_t Checksum(const void* data, size_t bytes);

}  // namespace npu::provider
