"""A rank of a served model: ``python -m …rank_process SOCKET DIR PROVIDER DEVICE``, by mpiexec.

It makes the steps that the process at the socket asks all ranks for. The first rank's logits are
the answer; the others compute the same.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import onnxruntime_npu

from ..generation.ranks import joined, rank_of_process
from .child_process import Failed
from .logits_model import SessionSteps, providers_of

# Ranks step together, so that one that is later than this stands still.
_PATIENCE = {"communication_timeout": "60"}


def _run(connection: Connection, rank: int, directory: Path, provider: str, device: int) -> None:
    onnxruntime_npu.register()
    report, settings = (
        json.loads((directory / name).read_text(encoding="utf-8"))
        for name in ("export_report.json", "genai_config.json")
    )
    ((name, options),) = providers_of(settings, provider, device)
    providers = joined([(name, {**_PATIENCE, **options})], report)
    steps = SessionSteps(directory, providers, connection.recv())
    connection.send((steps.block_size, steps.vocabulary))
    while True:
        logits = steps.step(*connection.recv())
        connection.send(logits if rank == 0 else None)


def main(path: str, directory: str, provider: str, device: str) -> int:
    """Serve the socket until it is closed; return the exit code."""
    rank = rank_of_process()
    assert rank is not None, "expected a launcher of ranks"
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(path)
        connection = Connection(connecting.detach())
    connection.send((rank, os.getpid()))
    try:
        _run(connection, rank, Path(directory) / f"rank_{rank}", provider, int(device))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the leading process is gone
        return 0
    except Exception as error:  # of onnxruntime, of the memory
        connection.send(Failed(" ".join(str(error).split()) or type(error).__name__))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
