// The instruction sets of this machine, detected from feature bits, never from the model name.
#pragma once

#include <vector>

namespace npu {

enum class Isa { kPortable, kAvx2, kAvx512, kAmx, kNeon, kNeonBf16 };

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx_vnni = false;  // dot products of 8-bit integers in vectors of 256 bits
  bool avx512 = false;    // F, BW, DQ, VL
  bool avx512_bf16 = false, avx512_fp16 = false, avx512_vnni = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false, amx_fp16 = false;  // usable: the kernel granted tile state
  bool neon = false;       // ARMv8.2-A with float16 and dot products of 8-bit integers
  bool neon_bf16 = false;  // matrix products of bfloat16 and of 8-bit integers
};

// The features, limited by ORT_NPU_ISA and extended by ORT_NPU_AMX_FP16. Throws Error(kInvalidArgument) when the former
// names an unknown level or one that this machine lacks.
const CpuFeatures& Features();
Isa ActiveIsa();
const char* NameOf(Isa isa);

// A level and those below it, which a machine with it supports as well: from the widest to kPortable.
std::vector<Isa> LevelsFrom(Isa isa);
// Those of the processor architecture that this is compiled for.
std::vector<Isa> LevelsOfArchitecture();
// The level whose kernel library `isa` uses: some instructions are used inside a library, behind Features().
Isa LibraryLevel(Isa isa);

}  // namespace npu
