"""Benchmarks look for what they need before they measure for hours; nothing is timed here."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import harness
import limits
import peers
import pytest
import ratios

ROOT = Path(__file__).resolve().parents[2]
# Not by its name, which is that of a script in tools/, too.
_spec = importlib.util.spec_from_file_location("benchmarks_check", ROOT / "benchmarks" / "check.py")
assert _spec is not None and _spec.loader is not None
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)
RECIPE = (ROOT / "Makefile").read_text().split("\nbench: ")[1].split("\n\n")[0]
SCRIPTS = list(dict.fromkeys(re.findall(r"\$\(PY\) benchmarks/(\w+)\.py", RECIPE)))


@pytest.fixture
def hidden(monkeypatch):
    """Modules that are not found, and nothing that begins to measure."""
    names: set[str] = set()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name in names else find(name, *of)
    )

    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("began to measure")

    monkeypatch.setattr(harness.Engine, "__init__", fail)
    monkeypatch.setattr(peers.Peers, "__init__", fail)
    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setenv("ORT_NPU_NUM_THREADS", "1")  # which scripts set, and this restores
    return names


def run(script: str, monkeypatch, *options: str) -> None:
    path = ROOT / "benchmarks" / f"{script}.py"
    monkeypatch.setattr("sys.argv", [path.name, *options])
    runpy.run_path(str(path), run_name="__main__")


def test_the_recipe_is_found():
    assert {"limits", "matmul", "llm", "services"} <= set(SCRIPTS)


@pytest.mark.parametrize(
    "script", [name for name in SCRIPTS if name not in ("limits", "narrower")] + ["check"]
)
@pytest.mark.parametrize("module", ["torch", "ml_dtypes", "onnxruntime_npu"])
def test_packages_are_looked_for_first(script, module, hidden, monkeypatch, tmp_path):
    hidden.add(module)
    with pytest.raises(SystemExit, match=rf"expected {module} .*make build"):
        run(script, monkeypatch, "--out", str(tmp_path))


@pytest.mark.parametrize("script", ["llm", "check"])
def test_plots_are_known_to_be_impossible_first(script, hidden, monkeypatch, tmp_path):
    hidden.add("matplotlib")
    with pytest.raises(SystemExit, match=r"expected matplotlib.*pip install"):
        run(script, monkeypatch, "--out", str(tmp_path))


def test_suites_without_plots_are_compared_without_matplotlib(hidden, monkeypatch, tmp_path):
    hidden.add("matplotlib")
    monkeypatch.setattr(check, "measure", lambda *_: {"calls: add | npu / cpu": 2.0})
    monkeypatch.setattr(ratios, "path_for", lambda machine: tmp_path / "ratios.json")
    monkeypatch.setattr("sys.argv", ["check.py", "--store", "--suites", "calls"])
    assert check.main() == 0


def test_programs_of_all_limits_are_looked_for_first(monkeypatch, tmp_path):
    monkeypatch.setenv("ORT_NPU_NUM_THREADS", "1")
    first, *others = (f"{name}_benchmark" for name in limits.BENCHMARKS)
    (tmp_path / first).touch()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("began to measure"))
    with pytest.raises(SystemExit, match=rf"{others[0]}.*cmake --build .* --target {others[0]}"):
        run("limits", monkeypatch, "--binaries", str(tmp_path), "--out", str(tmp_path))


def test_make_bench_builds_what_measures_limits():
    built = RECIPE.split("benchmarks/limits.py")[0]
    assert all(f"{name}_benchmark" in built for name in limits.BENCHMARKS)
