#!/usr/bin/env python3
"""Operators fused with a collective, against the same product and collective one after the other.

Each engine is two processes, the ranks, of one thread each. "fused" is one npu:: operator, eagerly
over torch's group "hccl"; "session" is the same node in a session, over MPI; "apart" is the product
on npu tensors, and then the collective of torch.distributed on the group "hccl", which begins when
the product has ended. A call begins when both ranks are ready and ends when both have their result.
A sample is the shortest of some calls: other processes of the machine only ever add to it.
Results are compared before anything is timed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import harness
import numpy as np

RANKS = 2
CALLS = {256: 40, 1024: 10, 4096: 4}  # of a sample, by the number of rows
OPERATORS = [
    "npu_mm_all_reduce_base",
    "npu_mm_reduce_scatter_base",
    "npu_all_gather_base_mm",
    "npu_alltoallv_gmm",
    "npu_gmm_alltoallv",
]
# Sums of 1024 products in another order; in bfloat16 also one rounding more before the sum.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2}


class Ranks:
    """The processes of one engine, which make every call together."""

    def __init__(self, kind: str, dtype: str) -> None:
        launcher = Path(sys.prefix) / "bin" / "mpiexec"
        if not launcher.is_file():
            raise RuntimeError("expected mpiexec of the package mpich: pip install mpich")
        self.folder = tempfile.TemporaryDirectory(prefix="ranks")
        script = Path(__file__).with_name("communication_rank.py")
        command = [str(launcher), "-n", str(RANKS), sys.executable, str(script)]
        with Listener(str(Path(self.folder.name) / "socket")) as listener:
            self.process = subprocess.Popen(
                [*command, self.folder.name, kind, dtype],
                env=os.environ | {"OMP_NUM_THREADS": "1", "ORT_NPU_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )
            connections = [listener.accept() for _ in range(RANKS)]
        self.connections = [c for _, c in sorted((c.recv(), c) for c in connections)]

    def each(self, *request: Any) -> list[Any]:
        """Make a call in every rank, and return the results of all."""
        for connection in self.connections:
            connection.send(request)
        return [connection.recv() for connection in self.connections]

    def result(self, operator: str, rows: int) -> np.ndarray:
        """All ranks' results in float32, one below the other."""
        return np.concatenate(self.each("result", operator, rows, 1))

    def time(self, operator: str, rows: int) -> float:
        """Seconds of the shortest call, each of which is as long as on the slower rank."""
        return float(np.max(self.each("seconds", operator, rows, CALLS[rows]), axis=0).min())


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32", "bfloat16"], rounds=7)
    parser.set_defaults(threads=1)
    arguments = harness.parse_arguments(parser)
    for dtype in arguments.dtypes:
        specs = {
            "fused": harness.Spec(functools.partial(Ranks, "fused", dtype), ours=True),
            "session": harness.Spec(functools.partial(Ranks, "session", dtype), ours=True),
            "apart": harness.Spec(functools.partial(Ranks, "apart", dtype)),
        }
        cases = [
            harness.Case(f"{dtype} {name} {rows} rows", 1, "calls", "time", (name, rows))
            for name in OPERATORS
            for rows in CALLS
        ]

        def check(engines: list[harness.Engine], dtype: str = dtype) -> None:
            calls = [(name, min(CALLS)) for name in OPERATORS]
            harness.compare(engines, "result", calls, TOLERANCES[dtype])

        harness.measure(arguments, f"communication-{dtype}", specs, cases, check)


if __name__ == "__main__":
    main()
