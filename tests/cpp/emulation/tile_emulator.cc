// Emulates the AMX tile instructions on machines without them; a library to preload. It handles the signal that an
// unknown instruction raises, so machines without tiles run the same code, encodings included, and AddressSanitizer
// checks the memory that tiles access. Written from the instructions' published description.
//
//   LD_PRELOAD=libnpu_tile_emulator.so ORT_NPU_ISA=amx PROGRAM
//
// With NPU_TILE_EMULATOR_FLOAT16=missing the products of float16 are illegal instructions, as on machines before
// AMX-FP16; with =hidden they are executed, but not reported, as under hypervisors that hide that feature. With
// NPU_TILE_EMULATOR_REPORT set, a process prints at exit how many tile instructions it executed. A test takes
// more detailed counts itself (tile_counts.h).
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cpp/emulation/tile_counts.h"

// Called by ep/runtime/isa.cc.
extern "C" __attribute__((visibility("default"))) bool npu_tiles_are_emulated() { return true; }
extern "C" __attribute__((visibility("default"))) bool npu_float16_tiles_are_emulated() {
  return std::getenv("NPU_TILE_EMULATOR_FLOAT16") == nullptr;
}

namespace {

bool Float16TilesAreMissing() {
  const char* setting = std::getenv("NPU_TILE_EMULATOR_FLOAT16");
  return setting != nullptr && std::strcmp(setting, "missing") == 0;
}

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Tile {
  uint8_t bytes[kRows][kRowBytes];
};
// The memory layout of ldtilecfg.
struct Configuration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
struct Registers {
  Configuration configuration;
  Tile tiles[kTiles];
};
static_assert(sizeof(Configuration) == 64);

thread_local Registers registers;
std::atomic<int64_t> executed{0};

// TileCounts of all threads.
struct {
  std::atomic<int64_t> products, stores, loads, hinted_loads, lines, loads_from_l1, most_products_without_store,
      products_after_loads, products_after_vectors;
} counts;

// The lower quarters of zmm0 to zmm15, and zmm16 to zmm31 where a machine has them.
struct Vectors {
  uint8_t low[sizeof(_libc_fpstate::_xmm)], high[16 * 64];
};
thread_local Vectors vectors_at_product = {};  // at this thread's last product
thread_local Vectors vectors_now = {};

thread_local int64_t products_without_store = 0;
thread_local bool loaded_since_product = false;

// The tiles that a thread loaded last, as an L1 cache of 48 KB holds them.
constexpr int kTilesOfL1 = 48;
thread_local const uint8_t* loaded_last[kTilesOfL1];
thread_local int next_loaded = 0;

void CountProduct() {
  ++counts.products;
  if (loaded_since_product) ++counts.products_after_loads;
  loaded_since_product = false;
  if (std::memcmp(&vectors_at_product, &vectors_now, sizeof(Vectors)) != 0) {
    ++counts.products_after_vectors;
    vectors_at_product = vectors_now;
  }
  ++products_without_store;
  int64_t most = counts.most_products_without_store;
  while (products_without_store > most &&
         !counts.most_products_without_store.compare_exchange_weak(most, products_without_store)) {
  }
}

void CountStore() {
  ++counts.stores;
  products_without_store = 0;
}

void CountLoad(const uint8_t* base, int64_t stride, int rows, int row_bytes, bool hinted) {
  constexpr uintptr_t kLine = 64;
  loaded_since_product = true;
  for (int row = 0; row < rows; ++row) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(base + row * stride);
    counts.lines += static_cast<int64_t>((first + static_cast<uintptr_t>(row_bytes) - 1) / kLine - first / kLine + 1);
  }
  if (hinted) {
    ++counts.hinted_loads;
    return;
  }
  ++counts.loads;
  if (std::find(loaded_last, loaded_last + kTilesOfL1, base) != loaded_last + kTilesOfL1) ++counts.loads_from_l1;
  loaded_last[next_loaded] = base;
  next_loaded = (next_loaded + 1) % kTilesOfL1;
}

[[noreturn]] void Refuse(const char* why) {
  std::fprintf(stderr, "[tile emulator] %s\n", why);
  std::abort();
}
void Expect(bool condition, const char* why) {
  if (!condition) Refuse(why);
}

// VEX prefix of three bytes, opcode, ModRM.
struct Instruction {
  bool extend_index, extend_base;
  int second_source, prefix, opcode, mod, reg, rm;  // prefix: 0 none, 1 66, 2 F3, 3 F2
};

bool Decode(const uint8_t* code, Instruction& out) {
  constexpr int kMap0F38 = 2;
  if (code[0] != 0xC4 || (code[1] & 31) != kMap0F38 || (code[2] & 0x84) != 0) return false;  // W0, L0
  out = {.extend_index = (code[1] & 0x40) == 0,
         .extend_base = (code[1] & 0x20) == 0,
         .second_source = (~code[2] >> 3) & 15,
         .prefix = code[2] & 3,
         .opcode = code[3],
         .mod = code[4] >> 6,
         .reg = (code[4] >> 3) & 7,
         .rm = code[4] & 7};
  return out.opcode == 0x49 || out.opcode == 0x4B || out.opcode == 0x5C || out.opcode == 0x5E;
}

struct Operand {
  uint8_t* base = nullptr;
  int64_t stride = 0;  // the scaled index: for a tile, the row stride
  int length = 0;      // of ModRM, SIB and displacement
};

Operand MemoryOperand(const Instruction& i, const uint8_t* modrm, const greg_t* general) {
  static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  Operand operand;
  operand.length = 1;
  int base = i.rm;
  if (i.rm == 4) {
    const uint8_t sib = modrm[operand.length++];
    base = sib & 7;
    const int index = ((sib >> 3) & 7) | (i.extend_index ? 8 : 0);
    if (index != 4) operand.stride = general[kOrder[index]] << (sib >> 6);
  }
  int64_t address = 0, displacement_bytes = i.mod == 1 ? 1 : i.mod == 2 ? 4 : 0;
  const bool without_base = i.mod == 0 && base == 5;  // RIP-relative without SIB, no base with it
  if (without_base) {
    displacement_bytes = 4;
    if (i.rm == 5) address = reinterpret_cast<int64_t>(modrm + operand.length + 4);
  } else {
    address = general[kOrder[base | (i.extend_base ? 8 : 0)]];
  }
  if (displacement_bytes == 1) address += static_cast<int8_t>(modrm[operand.length]);
  if (displacement_bytes == 4) {
    int32_t displacement;
    std::memcpy(&displacement, modrm + operand.length, 4);
    address += displacement;
  }
  operand.length += static_cast<int>(displacement_bytes);
  operand.base = reinterpret_cast<uint8_t*>(address);
  return operand;
}

void LoadConfiguration(const uint8_t* memory) {
  Configuration c;
  std::memcpy(&c, memory, sizeof c);
  Expect(c.palette == 1 && c.start_row == 0, "ldtilecfg: expected palette 1 and start_row 0");
  for (const uint8_t byte : c.reserved) Expect(byte == 0, "ldtilecfg: expected reserved bytes of 0");
  for (int t = 0; t < 16; ++t) {
    Expect(t < kTiles || (c.rows[t] == 0 && c.row_bytes[t] == 0), "ldtilecfg: expected 8 tiles at most");
    Expect(c.rows[t] <= kRows && c.row_bytes[t] <= kRowBytes, "ldtilecfg: expected 16 rows of 64 bytes at most");
    Expect((c.rows[t] == 0) == (c.row_bytes[t] == 0), "ldtilecfg: expected rows and bytes, or neither");
  }
  registers = {.configuration = c, .tiles = {}};
  products_without_store = 0;
}

// Aborts unless the tile is configured.
Tile& Configured(int tile) {
  Expect(registers.configuration.palette == 1, "a tile instruction without ldtilecfg before it on this thread");
  Expect(tile < kTiles && registers.configuration.rows[tile] > 0, "a tile that ldtilecfg did not configure");
  return registers.tiles[tile];
}
int RowsOf(int tile) { return registers.configuration.rows[tile]; }
int BytesOf(int tile) { return registers.configuration.row_bytes[tile]; }

void Load(int tile, const Operand& memory, bool hinted) {
  Tile& t = Configured(tile);
  CountLoad(memory.base, memory.stride, RowsOf(tile), BytesOf(tile), hinted);
  t = {};
  for (int row = 0; row < RowsOf(tile); ++row)
    std::memcpy(t.bytes[row], memory.base + row * memory.stride, static_cast<size_t>(BytesOf(tile)));
}

void Store(int tile, const Operand& memory) {
  const Tile& t = Configured(tile);
  CountStore();
  for (int row = 0; row < RowsOf(tile); ++row)
    std::memcpy(memory.base + row * memory.stride, t.bytes[row], static_cast<size_t>(BytesOf(tile)));
}

// Subnormal results and bfloat16 operands are flushed to zero; float16 operands are exact.
float Flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float FromBFloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return Flushed(value);
}

float FromFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void Upcast(const Tile& tile, int rows, int row_bytes, float (*upcast)(uint16_t), float (&out)[kRows][kRowBytes / 2]) {
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < row_bytes / 2; ++i) {
      uint16_t bits;
      std::memcpy(&bits, tile.bytes[row] + 2 * i, 2);
      out[row][i] = upcast(bits);
    }
}

void ExpectShapesThatFit(int c, int a, int b) {
  Expect(c != a && c != b && a != b, "a product of tiles that are not three different ones");
  Expect(RowsOf(a) == RowsOf(c) && BytesOf(b) == BytesOf(c) && RowsOf(b) * 4 == BytesOf(a),
         "a product of tiles whose shapes do not fit");
}

// c[m][n] += sum over k of a[m][k] * b[k / 4][4 * n + k % 4], in int32, which wraps.
void MultiplyBytes(int c, int a, int b, bool signed_a, bool signed_b) {
  Tile &tc = Configured(c), &ta = Configured(a), &tb = Configured(b);
  ExpectShapesThatFit(c, a, b);
  CountProduct();
  const auto widened = [](uint8_t byte, bool is_signed) {
    return static_cast<uint32_t>(is_signed ? int32_t{static_cast<int8_t>(byte)} : int32_t{byte});
  };
  for (int m = 0; m < RowsOf(c); ++m)
    for (int n = 0; n < BytesOf(c) / 4; ++n) {
      uint32_t sum;
      std::memcpy(&sum, tc.bytes[m] + 4 * n, 4);
      for (int k = 0; k < BytesOf(a); ++k)
        sum += widened(ta.bytes[m][k], signed_a) * widened(tb.bytes[k / 4][4 * n + k % 4], signed_b);
      std::memcpy(tc.bytes[m] + 4 * n, &sum, 4);
    }
}

// c[m][n] += sum over k of a[m][k] * b[k / 2][2 * n + k % 2]; even and odd k are summed separately.
void Multiply(int c, int a, int b, float (*upcast)(uint16_t)) {
  Tile &tc = Configured(c), &ta = Configured(a), &tb = Configured(b);
  ExpectShapesThatFit(c, a, b);
  CountProduct();
  float left[kRows][kRowBytes / 2] = {}, right[kRows][kRowBytes / 2] = {};
  Upcast(ta, RowsOf(a), BytesOf(a), upcast, left);
  Upcast(tb, RowsOf(b), BytesOf(b), upcast, right);
  const int columns = BytesOf(c) / 4;
  for (int m = 0; m < RowsOf(c); ++m) {
    float sums[kRowBytes / 2] = {};
    for (int k = 0; k < RowsOf(b); ++k)
      for (int n = 0; n < 2 * columns; ++n) sums[n] = std::fma(left[m][2 * k + n % 2], right[k][n], sums[n]);
    for (int n = 0; n < columns; ++n) {
      float value;
      std::memcpy(&value, tc.bytes[m] + 4 * n, 4);
      value = Flushed(value + (sums[2 * n] + sums[2 * n + 1]));
      std::memcpy(tc.bytes[m] + 4 * n, &value, 4);
    }
  }
}

// The length of the instruction; 0 if it is not a tile instruction.
int Execute(const uint8_t* code, const greg_t* general) {
  constexpr int kModRm = 4;
  Instruction i;
  if (!Decode(code, i)) return 0;
  if (i.mod == 3) {
    if (i.opcode == 0x49 && i.prefix == 0 && i.reg == 0 && i.rm == 0) {
      registers.configuration = {};  // tilerelease
    } else if (i.opcode == 0x49 && i.prefix == 3 && i.rm == 0) {
      Configured(i.reg) = {};  // tilezero
    } else if (i.opcode == 0x5C && i.prefix == 2) {
      Multiply(i.reg, i.rm, i.second_source, FromBFloat16);  // tdpbf16ps
    } else if (i.opcode == 0x5C && i.prefix == 3) {
      if (Float16TilesAreMissing()) return 0;
      Multiply(i.reg, i.rm, i.second_source, FromFloat16);  // tdpfp16ps
    } else if (i.opcode == 0x5E) {
      // tdpbuud, tdpbusd, tdpbsud, tdpbssd by prefix: none, 66, F3, F2
      MultiplyBytes(i.reg, i.rm, i.second_source, i.prefix >= 2, i.prefix == 1 || i.prefix == 3);
    } else {
      return 0;
    }
    return kModRm + 1;
  }
  const Operand memory = MemoryOperand(i, code + kModRm, general);
  if (i.opcode == 0x49 && i.prefix == 0 && i.reg == 0) {
    LoadConfiguration(memory.base);
  } else if (i.opcode == 0x4B && (i.prefix == 1 || i.prefix == 3) && i.rm == 4) {
    Load(i.reg, memory, /*hinted=*/i.prefix == 1);  // tileloaddt1, tileloadd
  } else if (i.opcode == 0x4B && i.prefix == 2 && i.rm == 4) {
    Store(i.reg, memory);
  } else {
    return 0;
  }
  return kModRm + memory.length;
}

using SigactionFunction = int (*)(int, const struct sigaction*, struct sigaction*);
SigactionFunction RealSigaction() {
  static const auto function = reinterpret_cast<SigactionFunction>(dlsym(RTLD_NEXT, "sigaction"));
  return function;
}

// Whether this machine saves a component of its state in signals, and where: bytes from the beginning.
struct Component {
  bool saved;
  unsigned offset;
};
Component FindComponent(unsigned number) {
  constexpr unsigned kOsXsave = 1u << 27;
  unsigned a, b, c, d;
  __cpuid(1, a, b, c, d);
  if ((c & kOsXsave) == 0) return {false, 0};
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if ((a >> number & 1) == 0) return {false, 0};
  __cpuid_count(0xd, number, a, b, c, d);
  return {true, b};
}

// A machine with tile registers that are not granted to this process executes ldtilecfg and tilerelease itself: what
// they configured is in the state that the signal saved.
void TakeConfigurationOfMachine(const void* saved) {
  static const Component component = FindComponent(17);
  if (!component.saved) return;
  const auto* configuration = static_cast<const uint8_t*>(saved) + component.offset;
  if (std::memcmp(configuration, &registers.configuration, sizeof(Configuration)) == 0) return;
  if (configuration[0] == 0) {
    registers.configuration = {};
  } else {
    LoadConfiguration(configuration);
  }
}

void TakeVectors(const fpregset_t saved) {
  std::memcpy(vectors_now.low, saved->_xmm, sizeof vectors_now.low);
  constexpr unsigned kNumber = 7;
  static const Component component = FindComponent(kNumber);
  if (!component.saved) return;
  constexpr size_t kHeader = 512;  // the components that are there; others are 0
  uint64_t there;
  std::memcpy(&there, reinterpret_cast<const uint8_t*>(saved) + kHeader, sizeof there);
  if ((there >> kNumber & 1) == 0) {
    std::memset(vectors_now.high, 0, sizeof vectors_now.high);
  } else {
    std::memcpy(vectors_now.high, reinterpret_cast<const uint8_t*>(saved) + component.offset, sizeof vectors_now.high);
  }
}

struct sigaction of_program = {};  // the handler that the program believes to be installed

// Not a tile instruction, or one that this machine lacks.
void PassOn(int signal_number, siginfo_t* info, void* context) {
  if ((of_program.sa_flags & SA_SIGINFO) != 0) {
    of_program.sa_sigaction(signal_number, info, context);
  } else if (of_program.sa_handler != SIG_DFL && of_program.sa_handler != SIG_IGN) {
    of_program.sa_handler(signal_number);
  } else {  // it is executed again and ends the process
    RealSigaction()(signal_number, &of_program, nullptr);
  }
}

void OnIllegalInstruction(int signal_number, siginfo_t* info, void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
  TakeVectors(machine.fpregs);
  TakeConfigurationOfMachine(machine.fpregs);
  const int length = Execute(reinterpret_cast<const uint8_t*>(machine.gregs[REG_RIP]), machine.gregs);
  if (length == 0) return PassOn(signal_number, info, context);
  machine.gregs[REG_RIP] += length;
  ++executed;
}

[[maybe_unused]] const bool installed = [] {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (RealSigaction()(SIGILL, &action, nullptr) != 0) Refuse("cannot handle SIGILL");
  if (std::getenv("NPU_TILE_EMULATOR_REPORT") != nullptr) {
    std::atexit([] { std::fprintf(stderr, "[tile emulator] %lld instructions\n", static_cast<long long>(executed)); });
  }
  return true;
}();

}  // namespace

extern "C" TileCounts npu_take_tile_counts() {
  return {.products = counts.products.exchange(0),
          .stores = counts.stores.exchange(0),
          .loads = counts.loads.exchange(0),
          .hinted_loads = counts.hinted_loads.exchange(0),
          .lines = counts.lines.exchange(0),
          .loads_from_l1 = counts.loads_from_l1.exchange(0),
          .most_products_without_store = counts.most_products_without_store.exchange(0),
          .products_after_loads = counts.products_after_loads.exchange(0),
          .products_after_vectors = counts.products_after_vectors.exchange(0)};
}

// doctest, Python's faulthandler and the runtime install handlers of their own, which would replace this one.
extern "C" __attribute__((visibility("default"))) int sigaction(int number, const struct sigaction* action,
                                                                struct sigaction* old) {
  if (number != SIGILL) return RealSigaction()(number, action, old);
  if (old != nullptr) *old = of_program;
  if (action != nullptr) of_program = *action;
  return 0;
}
