// Runs test cases of this executable with tile instructions in software, on machines without tile registers.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "ep/runtime/isa.h"
#include "tests/cpp/support/child_process.h"

namespace npu::test {

inline std::string FolderOfThisProgram() {
  const std::string program = PathOfThisProgram();
  return program.substr(0, program.rfind('/'));
}

// Whether kernels with tile instructions run here at all: what surrounds those is AVX-512. Where not, the log says so,
// since a test that checks nothing looks like one that passes.
inline bool HasKernelsWithTiles() {
  if (Features().avx512) return true;
  MESSAGE("not run: kernels with tile instructions need AVX-512");
  return false;
}

// Whether this machine has tile registers, whatever ORT_NPU_ISA restricts this process to: then nothing is emulated.
inline bool MachineHasTiles() {
  return RunTestCase("child: AMX tiles are available", {{"ORT_NPU_ISA", "amx"}}).exit_code == 0;
}

// `test_cases` is a name or wildcard; `more` are further environment variables.
inline ChildResult RunWithTiles(const std::string& test_cases, const std::map<std::string, std::string>& more = {}) {
  std::map<std::string, std::string> environment = more;
  environment.insert(
      {{"LD_PRELOAD", FolderOfThisProgram() + "/libnpu_tile_emulator.so"},
       {"ASAN_OPTIONS", "verify_asan_link_order=0"},  // the emulator is loaded before AddressSanitizer's library
       {"NPU_TILE_EMULATOR_REPORT", "1"},
       {"ORT_NPU_ISA", "amx"}});
  return RunTestCase(test_cases, environment, std::chrono::minutes(30));
}

}  // namespace npu::test
