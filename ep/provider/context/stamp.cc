#include "ep/provider/context/stamp.h"

#include <array>
#include <cstring>

#include "ep/runtime/isa.h"

namespace npu::provider {

ContextStamp StampOf(const Backend& backend) {
  // Besides the level, the features by which the layout of panels is chosen (gemm/packing.cc), and those that decide
  // which micro-kernels read them.
  const CpuFeatures& features = Features();
  std::string architecture = Concat(backend.name(), ' ', NameOf(ActiveIsa()));
  const auto add = [&](bool has, const char* name) {
    if (has) architecture += Concat('+', name);
  };
  add(features.avx_vnni && !features.avx512, "avx_vnni");
  add(features.avx512_bf16, "bf16");
  add(features.avx512_fp16, "fp16");
  add(features.avx512_vnni, "vnni");
  add(features.amx_bf16, "amx_bf16");
  add(features.amx_int8, "amx_int8");
  add(features.amx_fp16, "amx_fp16");
  add(features.neon_bf16, "neon_bf16");
  return {Concat("onnxruntime-npu ", NPU_VERSION), architecture};
}

uint64_t Checksum(const void* data, size_t bytes) {
  constexpr size_t kLanes = 8, kStep = kLanes * sizeof(uint64_t);
  // Odd, with about as many ones as zeros. Lanes hide the latency of the multiplication.
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  std::array<uint64_t, kLanes> sums;
  for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lane + 1;
  const auto mix = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kFactor;
    return sum ^ (sum >> 29);
  };
  const auto* from = static_cast<const unsigned char*>(data);
  std::array<uint64_t, kLanes> words;
  size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
    std::memcpy(words.data(), from + at, kStep);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = mix(sums[lane], words[lane]);
  }
  words.fill(0);
  if (at < bytes) std::memcpy(words.data(), from + at, bytes - at);
  uint64_t total = bytes;
  for (size_t lane = 0; lane < kLanes; ++lane) total = mix(total, mix(sums[lane], words[lane]));
  return total;
}

}  // namespace npu::provider
