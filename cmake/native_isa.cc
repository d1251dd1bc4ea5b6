// Prints the level of the widest kernel library that this machine runs, by the runtime's own rule: configuring with
// -DNPU_ISAS=native builds and runs it. A single source, since CMake before 3.25 supports no more in try_run.
#include <cstdio>

#include "ep/runtime/environment.cc"
#include "ep/runtime/error.cc"
#include "ep/runtime/hidden_float16_tiles.cc"
#include "ep/runtime/isa.cc"
#include "ep/runtime/log.cc"

int main() { std::puts(npu::NameOf(npu::LibraryLevel(npu::ActiveIsa()))); }
