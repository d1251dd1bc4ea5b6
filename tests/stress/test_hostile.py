"""A short form of the part of `make fuzz` that breaks rules, and that it finds what dies."""

from __future__ import annotations

import hostile
import pytest

# One call in four dies, one in four does not answer.
FATAL = """
import os
import time

def make_call(rng):
    seed = make_call.seed = getattr(make_call, "seed", FIRST - 1) + 1
    if seed % 4 == 1:
        time.sleep(1000)
    if seed % 4 == 2:
        os.abort()
    return "fatal: a result" if seed % 4 else "fatal: expected less,\\ngot more"
"""


@pytest.mark.parametrize(("kind", "count"), [("models", 80), ("calls", 150)])
def test_calls_that_break_rules_give_results_or_errors(capsys, kind, count) -> None:
    failures = hostile.main([kind, "--count", str(count)])
    printed = capsys.readouterr().out
    assert failures == 0, printed
    refused = int(printed.split(", ")[1].split()[0])
    assert count / 5 < refused < count * 4 / 5, printed


def test_a_process_that_dies_or_hangs_is_found(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "hostile_fatal.py").write_text("import sys\nFIRST = int(sys.argv[-1])" + FATAL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(hostile, "CALL_SECONDS", 1)
    assert hostile.check("fatal", 3, 4, 0, verbose=True) == 2
    printed = capsys.readouterr().out
    assert "fatal 3: fatal: a result\nfatal 4: fatal: expected less, got more\n" in printed
    assert "FAILED: fatal --seed 5 --count 1: no answer within 1 s" in printed
    assert "FAILED: fatal --seed 6 --count 1: exit code -6" in printed
    assert printed.endswith("4 fatal from seed 3 on, 1 refused, 2 failures\n")


@pytest.mark.slow
def test_a_model_of_which_onnxruntime_itself_dies_is_no_failure(capsys) -> None:
    """Split in 2 with three outputs: onnxruntime 1.31.1 reads beyond the two."""
    assert hostile.main(["models", "--seed", "4202012", "--count", "1"]) == 0
    printed = capsys.readouterr().out
    assert "onnxruntime dies without the NPU, too: models --seed 4202012" in printed
    assert printed.endswith("1 of which onnxruntime itself dies, 0 failures\n")
