// Prints the widest level of kernels that this machine runs, by the runtime's own rule: configuring with
// -DNPU_ISAS=native builds and runs it. A single source, since CMake before 3.25 supports no more in try_run.
#include <cstdio>

#include "ep/runtime/environment.cc"
#include "ep/runtime/error.cc"
#include "ep/runtime/isa.cc"

int main() {
  const npu::Isa isa = npu::ActiveIsa();
  std::puts(npu::NameOf(isa == npu::Isa::kAmx ? npu::Isa::kAvx512 : isa));  // AMX is used inside that library
}
