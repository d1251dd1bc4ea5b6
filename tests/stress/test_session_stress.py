"""The short form of tests/stress/session_stress.py, in a process with two devices."""

import subprocess
import sys
from pathlib import Path


def test_eight_threads_mix_sessions_tensors_and_graphs():
    program = Path(__file__).with_name("session_stress.py")
    command = [sys.executable, str(program), "--seconds", "15", "--seed", "14"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout
