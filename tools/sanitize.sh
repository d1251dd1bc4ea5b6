#!/usr/bin/env bash
# Builds with a sanitizer, only what is needed, and runs tests:
#   tools/sanitize.sh address|thread                       the C++ tests
#   tools/sanitize.sh address|thread cpp OPTIONS...        C++ tests, with options of npu_tests
#   tools/sanitize.sh address|thread stress ARGUMENTS...   the runtime's stress program (npu_stress)
#   tools/sanitize.sh address|thread pytest ARGUMENTS...   Python tests, over the sanitized libraries
#   tools/sanitize.sh address|thread python ARGUMENTS...   a Python program, likewise
# CMAKE_BUILD_PARALLEL_LEVEL limits the jobs of the build.
set -euo pipefail
cd "$(dirname "$0")/.."
usage="usage: tools/sanitize.sh address|thread [cpp|stress|pytest|python ARGUMENTS...]"
sanitizer=${1:?$usage}
what=${2:-cpp}
shift $(($# < 2 ? $# : 2))
case "$sanitizer" in
  address) flags=address,undefined ;;
  thread) flags=thread ;;
  *) echo "tools/sanitize.sh: expected address or thread, got $sanitizer" >&2; exit 2 ;;
esac
# The libraries of the Python package are built only where they are run.
package_libraries=OFF
case "$what" in
  cpp) target=npu_tests ;;
  stress) target=npu_stress ;;
  pytest | python) target=npu_package package_libraries=ON ;;
  *) echo "$usage, got $what" >&2; exit 2 ;;
esac
# The widest level this machine runs: hand-written vector code is where out-of-bounds reads hide.
isa=avx2
if grep -q avx512vl /proc/cpuinfo; then isa=avx512; fi
build=build/$sanitizer
python=${PYTHON:-.venv/bin/python}
[[ $python = /* ]] || python=$PWD/$python
# A package of its own, so that the one in use keeps its libraries.
package=$PWD/$build/package
# Also the one that pip installs for the package's own build.
PATH=$PATH:$(dirname "$python")
generator=()
if [[ ! -e $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
echo "building $target with -fsanitize=$flags in $build"
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNPU_SANITIZE="$flags" \
  -DNPU_LIBRARY_DIR="$package/python/onnxruntime_npu" -DNPU_BUILD_PROVIDER=$package_libraries \
  -DNPU_BUILD_PYTHON=$package_libraries -DNPU_BUILD_TESTS=ON -DNPU_ISAS=$isa -DPython3_EXECUTABLE="$python"
cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target $target
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=halt_on_error=1:${TSAN_OPTIONS:-}
# Before 13.3, gcc's check of a function's variables after its return leaves vectors of 64 bytes misaligned (gcc bug
# 110027): kernels for AVX-512 die of it. A size that no memory has is refused with an error, as without a sanitizer.
export ASAN_OPTIONS=detect_stack_use_after_return=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}
# Blocks of exactly the requested size, each from malloc, whose bounds AddressSanitizer knows: a cache has none.
if [[ $sanitizer = address ]]; then export PYTORCH_NO_NPU_MEMORY_CACHING=1; fi
case "$what" in
  cpp) exec "$build/npu_tests" "$@" ;;
  stress) exec "$build/npu_stress" "$@" ;;
esac
cp -r --update contrib_ops "$package"
find python -name '*.py' -exec cp --parents --update {} "$package" \;
# The interpreter itself is not instrumented: it frees nothing at its end, and the C++ runtime must be there for
# exceptions to be intercepted.
export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 PYTHONPATH=$package/python
# Reports go to files: pytest captures what a process prints, and a test need not notice that one of its own died.
reports=$(mktemp -d "$PWD/$build/reports.XXXXXX")
for options in ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS; do
  declare -x $options="${!options}:log_path=$reports/report"
done
preload="$(g++ -print-file-name=lib${sanitizer:0:1}san.so) $(g++ -print-file-name=libstdc++.so)"
if [[ $what = pytest ]]; then set -- -m pytest "$@"; fi
result=0
LD_PRELOAD=$preload "$python" "$@" || result=$?
if rmdir "$reports" 2>/dev/null; then exit $result; fi
cat "$reports"/*
echo "tools/sanitize.sh: these reports are in $reports" >&2
exit 1
