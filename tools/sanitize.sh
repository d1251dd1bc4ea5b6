#!/usr/bin/env bash
# Builds with a sanitizer and runs tests:
#   tools/sanitize.sh address|thread                       the C++ tests
#   tools/sanitize.sh address|thread pytest ARGUMENTS...   Python tests, over the sanitized libraries
#   tools/sanitize.sh address|thread stress ARGUMENTS...   the runtime's stress program (npu_stress)
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${1:?usage: tools/sanitize.sh address|thread [pytest|stress ARGUMENTS...]}
shift
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
# A package of its own, so that the one in use keeps its libraries.
package=$PWD/$build/package
parts=OFF
if [[ ${1:-} = pytest ]]; then parts=ON; fi
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNPU_SANITIZE="$flags" \
  -DNPU_LIBRARY_DIR="$package/python/onnxruntime_npu" -DNPU_BUILD_PROVIDER=$parts -DNPU_BUILD_PYTHON=$parts \
  -DNPU_BUILD_TESTS=ON -DNPU_ISAS=$isa -DPython3_EXECUTABLE="$python"
targets=all
if [[ ${1:-} = stress ]]; then targets=npu_stress; fi
cmake --build "$build" --parallel "$(nproc)" --target $targets
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
# Before 13.3, gcc's check of a function's variables after its return leaves vectors of 64 bytes misaligned (gcc bug
# 110027): kernels for AVX-512 die of it.
export ASAN_OPTIONS=detect_stack_use_after_return=0
if [[ ${1:-} = stress ]]; then
  shift
  exec "$build/npu_stress" "$@"
fi
if [[ $parts = OFF ]]; then
  exec "$build/npu_tests"
fi
cp -r --update contrib_ops "$package"
find python -name '*.py' -exec cp --parents --update {} "$package" \;
# The interpreter itself is not instrumented: it frees nothing at its end, and the C++ runtime must be there for
# exceptions to be intercepted.
export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 PYTHONPATH=$package/python
export LD_PRELOAD="$(g++ -print-file-name=lib${sanitizer:0:1}san.so) $(g++ -print-file-name=libstdc++.so)"
exec "$python" -m "$@"
