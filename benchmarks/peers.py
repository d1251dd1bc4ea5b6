"""The environment of the peers, build/bench/peers, created and filled here.

Each peer is installed separately, so that a failure does not affect the others; its reason is shown
in place of the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from platform import machine
from typing import Any

# torch is requested separately and pinned: an unpinned request may install gigabytes of GPU
# libraries. The second line has the packages that read and convert checkpoints.
COMMON = [
    ["torch==2.13.0"],
    [
        *("transformers==5.23.0", "accelerate==1.15.0", "onnx==1.23.2", "onnx-ir==1.1.0"),
        *("gguf==0.19.0", "ml_dtypes==0.6.0", "tqdm", "onnxruntime==1.31.1"),
    ],
]
PEERS = {
    "torch": [],
    "onnxruntime": ["onnxruntime-genai==0.18.0"],  # it has the builder of onnxruntime's best graph
    "genai": ["onnxruntime-genai==0.18.0"],
    "openvino": ["openvino==2026.4.1"],
    "llama.cpp": ["llama-cpp-python==0.3.36"],
}
# llama.cpp 0.3.36 ends in an invalid tilezero where it multiplies integers by tiles.
FLAGS = {"CFLAGS": "-mno-amx-int8", "CXXFLAGS": "-mno-amx-int8"} if machine() == "x86_64" else {}
# Of `services.py`: no peers of single requests, and no part of the key of converted files.
MORE = {"openvino-genai": ["openvino==2026.4.1", "openvino-genai==2026.4.1.0"]}


class Peers:
    """The interpreter of the environment, and the reasons for missing peers."""

    def __init__(self, out: Path, names: Iterable[str]) -> None:
        """Install the named peers that are not there yet; other names are ignored."""
        self.folder = out / "peers"
        self.python = str(self.folder / "bin" / "python")
        self.key = _digest([COMMON, PEERS])
        for requirements in COMMON:
            if reason := self._installed(requirements):
                sys.exit(f"cannot install {' '.join(requirements)}: {reason}")
        known = PEERS | MORE
        reasons = {name: self._installed(known[name]) for name in names if name in known}
        self.unavailable = {name: reason for name, reason in reasons.items() if reason}

    def _installed(self, requirements: list[str]) -> str:
        """Install, once; return why that failed, or an empty string."""
        state = self.folder / f"installed-{_digest(requirements)}.json"
        if not state.exists():
            if not Path(self.python).exists():
                print(f"peers are installed into {self.folder}", file=sys.stderr, flush=True)
                venv.create(self.folder, with_pip=True)
            reason = self._pip(requirements)
            if reason and requirements in COMMON:
                return reason
            state.write_text(json.dumps(reason) + "\n")
        recorded: str = json.loads(state.read_text())
        return recorded

    def _pip(self, requirements: list[str]) -> str:
        """Install; return the error, or an empty string."""
        if not requirements:
            return ""
        print(f"peers: {' '.join(requirements)}", file=sys.stderr, flush=True)
        # A package without a wheel for this machine is compiled, with an unlimited number of jobs.
        names = ("CMAKE_BUILD_PARALLEL_LEVEL", "LLAMA_CPP_BUILD_JOBS")
        jobs = dict.fromkeys(names, str(len(os.sched_getaffinity(0))))
        done = subprocess.run(
            [
                *(self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *requirements,
            ],
            env={**os.environ, **jobs, **FLAGS, "PYTHONPATH": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = done.stderr.strip().splitlines() or [f"pip exited with {done.returncode}"]
        return lines[-1] if done.returncode else ""


def _digest(requirements: Any) -> str:
    return hashlib.sha256(json.dumps(requirements).encode()).hexdigest()[:12]
