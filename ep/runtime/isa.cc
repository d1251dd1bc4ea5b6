#include "ep/runtime/isa.h"

#include <algorithm>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/hidden_float16_tiles.h"
#include "ep/runtime/log.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

// Defined by the emulator that tests preload on machines without tiles (tests/cpp/emulation), and only there.
extern "C" __attribute__((weak)) bool npu_tiles_are_emulated();
extern "C" __attribute__((weak)) bool npu_float16_tiles_are_emulated();

namespace npu {
namespace {

constexpr bool AllBits(unsigned long word, unsigned long mask) { return (word & mask) == mask; }

#if defined(__x86_64__)

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros if the leaf does not exist
  return r;
}

uint64_t EnabledStates() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux grants tile registers only on request; threads started later inherit the grant.
bool RequestTileState() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

constexpr bool Bit(uint32_t word, int bit) { return ((word >> bit) & 1) != 0; }

CpuFeatures Detect() {
  CpuFeatures f;
  const CpuidLeaf basic = Cpuid(1, 0), extended = Cpuid(7, 0), extended1 = Cpuid(7, 1), amd = Cpuid(0x80000001u, 0);
  if (!Bit(basic.ecx, 27)) return f;  // OSXSAVE: without it XGETBV must not be executed
  const uint64_t states = EnabledStates();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;

  // The kernel libraries are built for x86-64-v3 and -v4, so a level needs every part of those.
  const bool v3 = AllBits(states, kYmm) && Bit(basic.ecx, 28) /*AVX*/ && Bit(basic.ecx, 12) /*FMA*/ &&
                  Bit(basic.ecx, 22) /*MOVBE*/ && Bit(basic.ecx, 29) /*F16C*/ && Bit(extended.ebx, 3) /*BMI1*/ &&
                  Bit(extended.ebx, 5) /*AVX2*/ && Bit(extended.ebx, 8) /*BMI2*/ && Bit(amd.ecx, 5) /*LZCNT*/;
  f.avx2 = f.fma = f.f16c = v3;
  f.avx_vnni = v3 && Bit(extended1.eax, 4);
  f.avx512 = v3 && AllBits(states, kZmm) && Bit(extended.ebx, 16) /*F*/ && Bit(extended.ebx, 17) /*DQ*/ &&
             Bit(extended.ebx, 28) /*CD*/ && Bit(extended.ebx, 30) /*BW*/ && Bit(extended.ebx, 31) /*VL*/;
  f.avx512_vnni = f.avx512 && Bit(extended.ecx, 11);
  f.avx512_fp16 = f.avx512 && Bit(extended.edx, 23);
  f.avx512_bf16 = f.avx512 && Bit(extended1.eax, 5);
  // Without the grant tile instructions raise the signal that the emulator handles, on a machine with tiles, too.
  const bool emulated = npu_tiles_are_emulated != nullptr && npu_tiles_are_emulated();
  f.amx_tile = !emulated && f.avx512 && AllBits(states, kTiles) && Bit(extended.edx, 24) && RequestTileState();
  f.amx_bf16 = f.amx_tile && Bit(extended.edx, 22);
  f.amx_int8 = f.amx_tile && Bit(extended.edx, 25);
  f.amx_fp16 = f.amx_tile && Bit(extended1.eax, 21);
  if (emulated) {
    f.amx_tile = f.amx_bf16 = f.amx_int8 = f.avx512;
    f.amx_fp16 = f.avx512 && npu_float16_tiles_are_emulated();
  }
  return f;
}

#elif defined(__aarch64__)

CpuFeatures Detect() {
  // Bits of AT_HWCAP and AT_HWCAP2; the headers of older systems lack some.
  constexpr unsigned long kCrc32 = 1ul << 7, kAtomics = 1ul << 8, kHalf = 1ul << 9, kVectorHalf = 1ul << 10;
  constexpr unsigned long kRoundingDoubling = 1ul << 12, kDotProducts = 1ul << 20;
  constexpr unsigned long kInt8Matrices = 1ul << 13, kBFloat16 = 1ul << 14;
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  CpuFeatures f;
  // The kernel library is built for all of these.
  f.neon = AllBits(first, kCrc32 | kAtomics | kHalf | kVectorHalf | kRoundingDoubling | kDotProducts);
  f.neon_bf16 = f.neon && AllBits(second, kBFloat16 | kInt8Matrices);
  return f;
}

#else

CpuFeatures Detect() { return {}; }

#endif

Isa WidestOf(const CpuFeatures& f) {
  if (f.amx_bf16 && f.amx_int8) return Isa::kAmx;
  if (f.avx512) return Isa::kAvx512;
  if (f.avx2) return Isa::kAvx2;
  if (f.neon_bf16) return Isa::kNeonBf16;
  return f.neon ? Isa::kNeon : Isa::kPortable;
}

bool Contains(const std::vector<Isa>& levels, Isa isa) {
  return std::find(levels.begin(), levels.end(), isa) != levels.end();
}

CpuFeatures CutDown(CpuFeatures f, Isa isa) {
  const std::vector<Isa> levels = LevelsFrom(isa);
  if (!Contains(levels, Isa::kAmx)) f.amx_tile = f.amx_bf16 = f.amx_int8 = f.amx_fp16 = false;
  if (!Contains(levels, Isa::kAvx512)) f.avx512 = f.avx512_bf16 = f.avx512_fp16 = f.avx512_vnni = false;
  if (!Contains(levels, Isa::kAvx2)) f.avx2 = f.fma = f.f16c = f.avx_vnni = false;
  if (!Contains(levels, Isa::kNeonBf16)) f.neon_bf16 = false;
  if (!Contains(levels, Isa::kNeon)) f.neon = false;
  return f;
}

struct Active {
  CpuFeatures features;
  Isa isa;
};

const Active& ActiveSet() {
  static const Active active = [] {
    const CpuFeatures machine = Detect();
    const Isa widest = WidestOf(machine);
    const Isa isa = IsaFromEnvironment().value_or(widest);
    NPU_CHECK(Contains(LevelsFrom(widest), isa), "environment variable ORT_NPU_ISA: this machine lacks ", NameOf(isa),
              "; expected at most ", NameOf(widest));
    return Active{CutDown(machine, isa), isa};
  }();
  return active;
}

CpuFeatures WithWhatIsHidden(const Active& active) {
  CpuFeatures f = active.features;
  if (f.amx_fp16 || !Float16TilesAreTriedFromEnvironment()) return f;
  f.amx_fp16 = f.amx_bf16 && HasHiddenFloat16Tiles();
  if (!f.amx_fp16) {
    NPU_LOG(kWarning, "environment variable ORT_NPU_AMX_FP16=1 has no effect: ",
            f.amx_bf16 ? "this processor cannot multiply float16 in tile registers (AMX-FP16)"
                       : Concat("no tile registers at level ", NameOf(active.isa)));
  }
  return f;
}

}  // namespace

const CpuFeatures& Features() {
  static const CpuFeatures features = WithWhatIsHidden(ActiveSet());
  return features;
}
Isa ActiveIsa() { return ActiveSet().isa; }

const char* NameOf(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonBf16:
      return "neon_bf16";
  }
  return "unknown";
}

std::vector<Isa> LevelsFrom(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return {Isa::kPortable};
    case Isa::kAvx2:
      return {Isa::kAvx2, Isa::kPortable};
    case Isa::kAvx512:
      return {Isa::kAvx512, Isa::kAvx2, Isa::kPortable};
    case Isa::kAmx:
      return {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kPortable};
    case Isa::kNeon:
      return {Isa::kNeon, Isa::kPortable};
    case Isa::kNeonBf16:
      return {Isa::kNeonBf16, Isa::kNeon, Isa::kPortable};
  }
  return {};
}

std::vector<Isa> LevelsOfArchitecture() {
#if defined(__x86_64__)
  return LevelsFrom(Isa::kAmx);
#elif defined(__aarch64__)
  return LevelsFrom(Isa::kNeonBf16);
#else
  return LevelsFrom(Isa::kPortable);
#endif
}

Isa LibraryLevel(Isa isa) {
  if (isa == Isa::kAmx) return Isa::kAvx512;
  if (isa == Isa::kNeonBf16) return Isa::kNeon;
  return isa;
}

}  // namespace npu
