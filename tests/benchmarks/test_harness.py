"""Engines in separate processes, and models cached by the digest of their sources."""

import argparse
import functools
import time
from pathlib import Path

import harness
import llm_engines
import models
import numpy as np
import pytest


class Sleeper:
    """An engine that returns how long it slept."""

    def __init__(self, seconds):
        if seconds < 0:
            raise ValueError("asleep already")
        self.seconds = seconds

    def run(self):
        time.sleep(self.seconds)
        return self.seconds

    def ramp(self, length):
        return self.seconds + np.arange(length, dtype=np.float32)


def comes_to_stand_still(engine):
    path = Path(f"/proc/{engine._process.pid}/stat")
    for _ in range(1000):  # the signal may be delayed on a busy machine
        if path.read_text().rsplit(")", 1)[1].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def sleeper_module(monkeypatch):
    """Makes this file importable by name for the server process."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


def sleeper(seconds):
    return functools.partial(Sleeper, seconds)


def test_engine_process_is_stopped_between_calls(sleeper_module):
    engine = harness.Engine("sleeper", sleeper(0.01))
    assert comes_to_stand_still(engine)
    assert engine.call("run") == 0.01
    assert comes_to_stand_still(engine)
    engine.close()
    assert engine._process.returncode == 0


def test_engine_start_failure_reports_cause(sleeper_module):
    with pytest.raises(harness.EngineFailed, match=r"asleep already"):
        harness.Engine("sleeper", sleeper(-1))


def test_missing_peer_is_reported_and_others_are_measured(sleeper_module, tmp_path, capsys):
    arguments = argparse.Namespace(only="short", rounds=2, out=tmp_path)
    specs = {
        "npu": harness.Spec(sleeper(0.01), ours=True),
        "peer": harness.Spec(sleeper(0.02)),
        "broken": harness.Spec(sleeper(-1)),
    }
    cases = [harness.Case(name, 1, "calls", "run", ()) for name in ("short nap", "long sleep")]
    missing: dict[str, str] = {}
    run = harness.measure(arguments, "naps", specs, cases, missing=missing)
    assert run is not None and run.cases() == ["short nap"]
    assert missing == {"broken": "ValueError: asleep already"}
    printed = capsys.readouterr()
    assert "| short nap | calls/s | 100 (100) | 50 (50) | 2.00 (2.00) |" in printed.out
    reported = printed.err.splitlines()
    assert "without broken: ValueError: asleep already" in reported[0]
    assert "1/1 short nap: npu 100, peer 50 calls/s" in reported[-1]


def test_engines_with_different_results_are_not_timed(sleeper_module, capsys):
    engines = [harness.Engine(f"{s} s", sleeper(s)) for s in (0.0, 1e-3)]
    # The norm of 4 x 0.001 over that of (0, 1, 2, 3): 5.3e-4.
    harness.compare(engines, "ramp", [(4,)], 6e-4)
    assert "0.001 s: ramp(4,) differs by 5.3e-04" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"nothing is timed: .* expected <= 0.0005"):
        harness.compare(engines, "ramp", [(4,)], 5e-4)
    for engine in engines:
        engine.close()


def test_models_are_rebuilt_when_their_sources_change(tmp_path):
    made = []

    def make(name):
        key = models.digest(name)
        folder = models.kept(tmp_path, "model", key, lambda folder: made.append(folder.name))
        return folder.name

    first, again, changed = make("a"), make("a"), make("b")
    assert first == again != changed
    assert made == [first, changed]
    assert [folder.name for folder in (tmp_path / "models").iterdir()] == [changed]


def test_digest_depends_on_file_content(tmp_path):
    path = tmp_path / "exporter.py"
    path.write_text("one")
    before = models.digest("options", files=[path])
    path.write_text("two")
    assert models.digest("options", files=[path]) != before


def test_logits_are_copied_at_each_step():
    class SameBuffer(llm_engines.LanguageModel):
        """Returns the same array every time, as onnxruntime does for a bound output."""

        vocabulary = 50

        def reset(self, rows):
            self.buffer = np.zeros((rows, 3), np.float32)

        def step(self, ids, past):
            self.buffer[:] = past + ids.shape[1]
            return self.buffer

    assert SameBuffer().logits(4, 2)[:, 0].tolist() == [4, 5, 6]
