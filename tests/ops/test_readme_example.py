"""contrib_ops/README.md is true: its example, put into an empty folder, works on every path."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime_npu
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(onnxruntime_npu.__file__).resolve().parent
_FILE = re.compile(r"^`contrib_ops/(\S+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def package_with_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a package whose only operator is the README's, built as the README says."""
    site = tmp_path_factory.mktemp("site")
    package = site / "onnxruntime_npu"
    kernels = shutil.ignore_patterns("libnpu_kernels_*", "contrib_ops", "__pycache__", "*.pyi")
    shutil.copytree(PACKAGE, package, ignore=kernels)
    files = dict(_FILE.findall((ROOT / "contrib_ops" / "README.md").read_text()))
    assert sorted(Path(f).suffix for f in files) == [".cc", ".py"]
    for name, text in files.items():
        path = package / "contrib_ops" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    build = site / "build"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "Python3_EXECUTABLE": sys.executable,
        "NPU_LIBRARY_DIR": package,
        "NPU_CONTRIB_OPS_DIR": package / "contrib_ops",
        "NPU_RUNTIME_LIBRARY": package / "libnpu_runtime.so",
        "NPU_STANDARD_KERNELS": "OFF",
        "NPU_ISAS": "portable",
        "NPU_BUILD_PROVIDER": "OFF",
        "NPU_BUILD_PYTHON": "OFF",
    }
    flags = [f"-D{name}={value}" for name, value in options.items()]
    _run(["cmake", "-S", str(ROOT), "-B", str(build), *flags])
    _run(["cmake", "--build", str(build)])
    return site


def test_the_example_passes_every_operator_test(package_with_example: Path) -> None:
    here = {"PYTHONPATH": str(package_with_example), "ORT_NPU_ISA": "portable"}
    where = "import onnxruntime_npu as n; print(n.__file__, [r['name'] for r in n.op_table()])"
    printed = _run([sys.executable, "-c", where], **here)
    assert str(package_with_example) in printed and "['npu_axpy']" in printed
    tests = Path(__file__).with_name("test_ops.py")
    report = _run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)], **here
    )
    passed = re.search(r"(\d+) passed", report)
    assert passed and int(passed[1]) > 50, report
    assert "skipped" not in report.splitlines()[-1], report


def test_the_stubs_name_the_example(package_with_example: Path) -> None:
    stubs = (package_with_example / "onnxruntime_npu" / "ops.pyi").read_text()
    signature = "npu_axpy(input: torch.Tensor, other: torch.Tensor, alpha: float = 1.0)"
    assert f"def {signature} -> torch.Tensor:" in stubs
    assert "def npu_axpy_(" in stubs
