#include "ep/runtime/hidden_float16_tiles.h"

#if defined(__x86_64__)
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

namespace npu {
namespace {

struct sigaction program_action;  // the program's own handler
// Known by its address, since other threads may run illegal instructions of their own meanwhile.
uintptr_t tried_instruction = 0;
constexpr int kInstructionBytes = 5;
volatile sig_atomic_t is_illegal = 0;

void OnIllegalInstruction(int signal, siginfo_t* info, void* context) {
  greg_t& next = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  if (static_cast<uintptr_t>(next) == tried_instruction) {
    is_illegal = 1;
    next += kInstructionBytes;
  } else if ((program_action.sa_flags & SA_SIGINFO) != 0) {
    program_action.sa_sigaction(signal, info, context);
  } else if (program_action.sa_handler != SIG_DFL && program_action.sa_handler != SIG_IGN) {
    program_action.sa_handler(signal);
  } else {
    sigaction(signal, &program_action, nullptr);  // on return the instruction is repeated and ends the process
  }
}

// tmm0 += tmm1 · tmm2 of float16, and the sum, of one element. The file is compiled without tiles: the compiler knows
// neither their registers nor their types, and older assemblers do not know tdpfp16ps.
float ProductOfTiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {4, 4, 4};
    uint8_t rows[16] = {1, 1, 1};
  } const configuration;
  static_assert(sizeof configuration == 64);
  const uint16_t operand[2] = {0x3e00, 0x4000};  // 1.5, 2
  float sum = 0;
  asm volatile(
      "ldtilecfg %[configuration]\n\t"
      "tilezero %%tmm0\n\t"
      "tileloadd (%[operand],%[stride],1), %%tmm1\n\t"
      "tileloadd (%[operand],%[stride],1), %%tmm2\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rax, %[tried]\n"
      "1:\n\t"
      ".byte 0xc4, 0xe2, 0x6b, 0x5c, 0xc1\n\t"
      "tilestored %%tmm0, (%[sum],%[stride],1)\n\t"
      "tilerelease"
      : [tried] "=m"(tried_instruction)
      : [configuration] "m"(configuration), [operand] "r"(operand), [stride] "r"(int64_t{4}), [sum] "r"(&sum)
      : "rax", "memory");
  return sum;
}

}  // namespace

bool HasHiddenFloat16Tiles() {
  // An illegal instruction of a thread that blocks the signal ends the process.
  sigset_t illegal, blocked;
  sigemptyset(&illegal);
  sigaddset(&illegal, SIGILL);
  if (sigaction(SIGILL, nullptr, &program_action) != 0 || pthread_sigmask(SIG_UNBLOCK, &illegal, &blocked) != 0)
    return false;
  struct sigaction action = {};
  action.sa_sigaction = &OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  bool found = false;
  if (sigaction(SIGILL, &action, nullptr) == 0) {
    is_illegal = 0;
    constexpr float kSum = 1.5f * 1.5f + 2.0f * 2.0f;
    const float sum = ProductOfTiles();
    found = is_illegal == 0 && sum == kSum;
    sigaction(SIGILL, &program_action, nullptr);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  return found;
}

}  // namespace npu

#else

namespace npu {
bool HasHiddenFloat16Tiles() { return false; }
}  // namespace npu

#endif
