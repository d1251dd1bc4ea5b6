"""What tests of several areas use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1] / "python"


@pytest.fixture
def run_python():
    """Runs code in a process of its own, for what is read once; returns (exit code, output)."""

    def run(code: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(PYTHON), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    return run
