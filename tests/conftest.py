"""Fixtures of several areas."""

import copy
import functools
import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

PYTHON = Path(__file__).resolve().parents[1] / "python"

# The same examples on every machine, without deadlines.
settings.register_profile(
    "npu",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("npu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=0, help="of the random numbers that each test begins with"
    )
    parser.addoption(
        "--exhaustive", action="store_true", help="also run tests marked exhaustive (half an hour)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects no garbage among tests, of which there are tens of thousands and which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect exhaustive tests unless asked for."""
    if config.getoption("--exhaustive"):
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.fixture(autouse=True)
def same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Seeds the generators, so that a test does not depend on those before it."""
    seed = request.config.getoption("--seed")
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        # By itself: torch.manual_seed keeps a formatted stack for each kind of device that is not
        # there, which takes as long as a test.
        torch.default_generator.manual_seed(seed)
        if (npu := getattr(torch, "npu", None)) is not None:
            npu.manual_seed_all(seed)


@pytest.fixture(scope="module", autouse=True)
def known_objects() -> None:
    """Takes what was there before the file, a million objects and more, out of garbage collections.

    Every capture of a graph begins with one, which would take a second and more.
    """
    gc.collect()
    gc.freeze()
    # Python's own thresholds collect so often that it takes a twelfth of an export's time.
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def signatures_read_once() -> None:
    """Keeps what each export reads anew: signatures of 500 functions of onnxscript, and tables."""
    if "onnxscript" in sys.modules:
        import torch._export.utils
        from onnxscript.values import TracedOnnxFunction
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        kept = functools.cached_property(TracedOnnxFunction.function_ir.fget)
        kept.__set_name__(TracedOnnxFunction, "function_ir")
        TracedOnnxFunction.function_ir = kept

        read = functools.cache(ONNXRegistry.from_torchlib)

        def from_torchlib(**options: int) -> ONNXRegistry:
            registry = copy.copy(read(**options))  # its own, to which an export adds operators
            registry.functions = {name: [*each] for name, each in registry.functions.items()}
            return registry

        ONNXRegistry.from_torchlib = staticmethod(from_torchlib)
        # Makes torch's operators known to Python, twice for each namespace there is. Those that
        # tests add are made in Python.
        utils = torch._export.utils
        utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)


@pytest.fixture
def still_memory() -> Iterator[None]:
    """Only the test allocates or frees memory: no work is queued, no garbage is left."""
    from onnxruntime_npu import npu

    npu.synchronize()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def genai() -> None:
    """onnxruntime-genai brings an onnxruntime of its own, which has to know the provider, once."""
    import onnxruntime_genai
    import onnxruntime_npu

    onnxruntime_genai.register_execution_provider_library(
        onnxruntime_npu.get_ep_name(), onnxruntime_npu.get_library_path()
    )


@pytest.fixture
def run_python():
    """Runs code in a process, for settings that are read once; returns (exit code, output)."""

    def run(code: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(PYTHON), **environment},
            capture_output=True,
            text=True,
            timeout=900,
        )
        return done.returncode, done.stdout + done.stderr

    return run
