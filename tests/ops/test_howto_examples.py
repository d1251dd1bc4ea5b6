"""The examples of the how-to pages, put into an empty folder, build and work.

contrib_ops/README.md adds an operator, docs/howto/standard_kernel.md a kernel of a standard one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import onnxruntime_npu
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(onnxruntime_npu.__file__).resolve().parent
_FILE = re.compile(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGES = ("contrib_ops/README.md", "docs/howto/standard_kernel.md")


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
    """Make a package whose only operators are those of the pages, built as the README says."""
    site = tmp_path_factory.mktemp("site")
    package = site / "onnxruntime_npu"
    kernels = shutil.ignore_patterns("libnpu_kernels_*", "contrib_ops", "__pycache__", "*.pyi")
    shutil.copytree(PACKAGE, package, ignore=kernels)
    files = {f: text for page in _PAGES for f, text in _FILE.findall((ROOT / page).read_text())}
    assert sorted(Path(f).suffix for f in files) == [".cc", ".cc", ".py"]
    for name, text in files.items():
        path = package / "contrib_ops" / name.removeprefix("contrib_ops/")
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


def test_example_operator_passes_every_derived_test(package_with_example: Path) -> None:
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


def test_stubs_contain_the_example(package_with_example: Path) -> None:
    stubs = (package_with_example / "onnxruntime_npu" / "ops.pyi").read_text()
    signature = "npu_axpy(input: torch.Tensor, other: torch.Tensor, alpha: float = 1.0)"
    assert f"def {signature} -> torch.Tensor:" in stubs
    assert "def npu_axpy_(" in stubs


def test_standard_kernel_example_runs_in_a_session(package_with_example: Path) -> None:
    program = """
        import numpy as np, onnx, onnxruntime as ort, onnxruntime_npu
        from onnx import TensorProto, helper

        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [5]) for n in "xy")
        node = helper.make_node("Shrink", ["x"], ["y"], bias=0.25)
        graph = helper.make_graph([node], "shrink", [x], [y])
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["NPUExecutionProvider", "CPUExecutionProvider"]
        )
        assert [n["provider"] for n in onnxruntime_npu.assignment(session)] == [
            "NPUExecutionProvider"
        ]
        x = np.array([-2, -0.5, 0.25, 0.75, np.inf], np.float32)
        print(session.run(None, {"x": x})[0].tolist())
    """
    here = {"PYTHONPATH": str(package_with_example), "ORT_NPU_ISA": "portable"}
    printed = _run([sys.executable, "-c", textwrap.dedent(program)], **here)
    assert printed.splitlines()[-1] == "[-1.75, 0.0, 0.0, 0.5, inf]"
