"""The example of docs/howto/backend.md registers itself and runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"^`([^`\n]+\.cc)`:\n\n```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the page's file against libnpu_runtime.so into a shared library."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    ((name, text),) = _FILE.findall((ROOT / "docs/howto/backend.md").read_text())
    folder = tmp_path_factory.mktemp("backend")
    source, library = folder / Path(name).name, folder / "libexample.so"
    source.write_text(text)
    runtime = ROOT / "python/onnxruntime_npu"
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += [f"-I{ROOT}", str(source), f"-L{runtime}", "-lnpu_runtime"]
    command += [f"-Wl,-rpath,{runtime}", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return library


def test_example_backend_is_selected_by_name_and_blocks(run_python, example):
    code, output = run_python(
        f"""
import ctypes, os
ctypes.CDLL({os.fspath(example)!r}, mode=ctypes.RTLD_GLOBAL)
from onnxruntime_npu import _C, npu
assert npu.get_device_name() == "Host NPU"
_C.sleep(_C.default_stream(0), 50_000_000)
assert npu.default_stream().query()
""",
        ORT_NPU_BACKEND="blocking_host",
    )
    assert code == 0, output


def test_backend_name_is_unknown_without_its_library(run_python):
    code, output = run_python(
        "from onnxruntime_npu import npu; npu.synchronize()", ORT_NPU_BACKEND="blocking_host"
    )
    assert code != 0
    assert "[ORT_NPU_BACKEND] expected one of host, null, got 'blocking_host'" in output
