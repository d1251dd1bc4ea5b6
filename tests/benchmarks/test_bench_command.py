"""``onnxruntime-npu bench``: one benchmark by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnxruntime_npu.cli import bench_command, main

PROGRAM = [sys.executable, "-m", "onnxruntime_npu.cli", "bench"]


def test_benchmarks_are_listed_with_what_they_measure(capsys):
    assert main(["bench"]) == 0
    names = {}
    for line in capsys.readouterr().out.splitlines():
        name, summary = line.split(maxsplit=1)
        names[name] = summary
    assert {"llm", "matmul", "services", "attention"} <= set(names)
    assert not {"harness", "peer_models", "results"} & set(names)  # what benchmarks share
    assert all(summary.endswith(".") for summary in names.values())


def test_a_benchmark_gets_its_options_and_gives_its_exit_code():
    shown = subprocess.run([*PROGRAM, "matmul", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "usage: matmul.py" in shown.stdout
    assert "--rounds ROUNDS" in shown.stdout
    wrong = subprocess.run([*PROGRAM, "matmul", "--rounds", "x"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "invalid int value: 'x'" in wrong.stderr


def test_unknown_names_are_refused(capsys):
    assert main(["bench", "matmuls"]) == 2
    assert "expected a benchmark of aten, attention, " in (error := capsys.readouterr().err)
    assert error.rstrip().endswith("got 'matmuls'") and error.count("\n") == 1


@pytest.mark.parametrize("words", [["bench"], ["bench", "llm"]])
def test_an_installed_package_says_where_benchmarks_are(monkeypatch, capsys, tmp_path, words):
    monkeypatch.setattr(bench_command, "_FOLDER", tmp_path)
    assert main(words) == 1
    assert "not installed with the package" in capsys.readouterr().err
