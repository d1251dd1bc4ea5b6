#!/usr/bin/env bash
# Cross-compiles the runtime, the provider, the kernels and the C++ tests for ARM64, and runs the tests in an emulator:
#   tools/arm64.sh [OPTIONS OF npu_tests...]
set -euo pipefail
cd "$(dirname "$0")/.."
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  if ! command -v "$program" >/dev/null; then
    echo "make arm64: expected $program to be installed; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 2
  fi
done
build=build/arm64
python=${PYTHON:-.venv/bin/python}
[[ $python = /* ]] || python=$PWD/$python
cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64_toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DNPU_BUILD_PYTHON=OFF -DNPU_BUILD_TESTS=ON -DPython3_EXECUTABLE="$python"
cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

# run LEVEL PROCESSOR OPTIONS...: the runtime must find that level on this processor, which lacks the next one.
run() {
  local level=$1 emulator=(qemu-aarch64 -cpu "$2" -L /usr/aarch64-linux-gnu)
  shift 2
  echo "kernels $level: ${emulator[*]}"
  NPU_TEST_EMULATOR=${emulator[*]} NPU_TEST_ISA=$level "${emulator[@]}" "$build/npu_tests" "$@"
}
kernels=--source-file=*/tests/cpp/kernels/*,*/isa_test.cc
run neon_bf16 max "$@"
run neon neoverse-n1 "$kernels" "$@"
run portable cortex-a53 "$kernels" "$@"
