#!/usr/bin/env bash
# Builds the C++ tests with a sanitizer and runs them: tools/sanitize.sh address|thread
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${1:?usage: tools/sanitize.sh address|thread}
case "$sanitizer" in
  address) flags=address,undefined ;;
  thread) flags=thread ;;
  *) echo "tools/sanitize.sh: expected address or thread, got $sanitizer" >&2; exit 2 ;;
esac
# The widest level this machine runs: hand-written vector code is where out-of-bounds reads hide.
isa=avx2
if grep -q avx512vl /proc/cpuinfo; then isa=avx512; fi
build=build/$sanitizer
python=${PYTHON:-.venv/bin/python}
[[ $python = /* ]] || python=$PWD/$python
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNPU_SANITIZE="$flags" -DNPU_LIBRARY_DIR="$PWD/$build/lib" \
  -DNPU_BUILD_PROVIDER=OFF -DNPU_BUILD_PYTHON=OFF -DNPU_BUILD_TESTS=ON -DNPU_ISAS=$isa \
  -DPython3_EXECUTABLE="$python"
cmake --build "$build" --parallel "$(nproc)"
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
"$build/npu_tests"
