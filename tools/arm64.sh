#!/usr/bin/env bash
# Cross-compiles the runtime, the provider, the kernels and the C++ tests for ARM64, and runs the tests in an emulator:
#   [LEVELS="neon_bf16 neon portable"] tools/arm64.sh [OPTIONS OF npu_tests...]
# The tests of each file run in a process of their own: one that dies, or does not end within LIMIT seconds, is named,
# and the others still run. Of the levels after the first, only the tests of kernels are run.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  if ! command -v "$program" >/dev/null; then
    echo "make arm64: expected $program to be installed; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 2
  fi
done
read -ra levels <<<"${LEVELS:-neon_bf16 neon portable}"
# Of each level: the processor to emulate, which lacks what the next level needs, and the library of its kernels.
declare -A processors=([neon_bf16]=max [neon]=neoverse-n1 [portable]=cortex-a53)
declare -A libraries=([neon_bf16]=neon [neon]=neon [portable]=portable)
built=
for level in "${levels[@]}"; do
  if [[ -z ${processors[$level]:-} ]]; then
    echo "make arm64: expected LEVELS from neon_bf16, neon and portable, got $level" >&2
    exit 2
  fi
  [[ ";$built;" == *";${libraries[$level]};"* ]] || built+="${built:+;}${libraries[$level]}"
done
build=build/arm64
python=${PYTHON:-.venv/bin/python}
[[ $python = /* ]] || python=$PWD/$python
cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64_toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DNPU_BUILD_PYTHON=OFF -DNPU_BUILD_TESTS=ON "-DNPU_ISAS=$built" -DPython3_EXECUTABLE="$python"
cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

failed=() ran=0
# run LEVEL FILES OPTIONS...: the runtime must find that level on the processor.
run() {
  local level=$1 files=$2 emulator=(qemu-aarch64 -cpu "${processors[$1]}" -L /usr/aarch64-linux-gnu)
  local file tests count begin
  shift 2
  echo "kernels $level: ${emulator[*]}"
  for file in $files; do
    tests=("${emulator[@]}" "$build/npu_tests" --source-file="*/$file" "$@")
    count=$("${tests[@]}" --count | grep -o '[0-9]*$')
    if [[ $count = 0 ]]; then continue; fi
    ran=$((ran + count)) begin=$SECONDS
    if NPU_TEST_EMULATOR=${emulator[*]} NPU_TEST_ISA=$level timeout "${LIMIT:-900}" "${tests[@]}" --minimal; then
      echo "  $file: $count passed, $((SECONDS - begin)) s"
    else
      echo "  $file: FAILED, $((SECONDS - begin)) s"
      failed+=("$level $file")
    fi
  done
}
kernels=$(printf '%s\n' tests/cpp/kernels/*_test.cc tests/cpp/runtime/isa_test.cc)
run "${levels[0]}" "$kernels $(printf '%s\n' tests/cpp/runtime/*_test.cc | grep -v /isa_test.cc)" "$@"
for level in "${levels[@]:1}"; do run "$level" "$kernels" "$@"; done
if ((ran == 0)); then
  echo "make arm64: expected options that choose a test, got $*" >&2
  exit 2
fi
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
