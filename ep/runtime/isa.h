// The instruction sets of this machine, detected from feature bits, never from the model name.
#pragma once

namespace npu {

enum class Isa { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_bf16 = false, avx512_fp16 = false, avx512_vnni = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false, amx_fp16 = false;  // usable: the kernel granted tile state
};

// The features, limited by ORT_NPU_ISA. Throws Error(kInvalidArgument) when it names an unknown level or one that this
// machine lacks.
const CpuFeatures& Features();
Isa ActiveIsa();
const char* NameOf(Isa isa);

}  // namespace npu
