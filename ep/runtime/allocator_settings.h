// PYTORCH_NPU_ALLOC_CONF: how the caching allocator behaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace npu {

struct AllocatorSettings {
  size_t max_split_size = SIZE_MAX;                  // larger blocks are never split
  size_t max_non_split_rounding = size_t{20} << 20;  // by how much such a block may exceed a request
  double garbage_collection_threshold = 0;           // share of the cap above which idle segments are freed; 0: never
  bool expandable_segments = false;                  // segments grow in place
  size_t large_segment_size = size_t{20} << 20;      // shared by requests of 1 to 10 MiB
  double memory_fraction = 1;                        // of the device's memory
  std::vector<uint64_t> roundup_power2_divisions;    // by power of two from 1 MiB on; empty: sizes stay as they are
  bool caching = true;                               // false: each block is the device's, of the requested size

  // The size that a request of `bytes` takes in a cache: a multiple of 512.
  size_t RoundSize(size_t bytes) const;
};

// Parses "key:value,key:value". Throws Error(kInvalidArgument) that names `variable`, the key and what is allowed.
AllocatorSettings ParseAllocatorSettings(const std::string& variable, const std::string& text);
// From PYTORCH_NPU_ALLOC_CONF or PYTORCH_ALLOC_CONF, and PYTORCH_NO_NPU_MEMORY_CACHING.
AllocatorSettings AllocatorSettingsFromEnvironment();

}  // namespace npu
