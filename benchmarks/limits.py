#!/usr/bin/env python3
"""Kernels and launches beside what the machine itself does: the C++ benchmarks, kept for docs.

`gemm_benchmark` sets products beside the multiply-add rate of the registers and the best of several
read loops, `launch_benchmark` sets the runtime beside a bare futex, each in the same run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness

BENCHMARKS = ["gemm", "launch"]


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32", "bfloat16", "float16"], rounds=15)
    binaries = harness.ROOT / "build" / "cmake"
    parser.add_argument("--binaries", type=Path, default=binaries, help="what `make build` built")
    arguments = harness.parse_arguments(parser)
    options = {
        "gemm": ["--dtype", ",".join(arguments.dtypes), "--rounds", str(arguments.rounds)],
        "launch": [],
    }
    for name in BENCHMARKS:
        binary = arguments.binaries / f"{name}_benchmark"
        if not binary.is_file():
            sys.exit(f"{binary} is not there: `make build` makes it")
        lines = []
        with subprocess.Popen([binary, *options[name]], stdout=subprocess.PIPE, text=True) as run:
            for line in run.stdout or ():
                print(line, end="", flush=True)
                lines.append(line)
        if run.returncode != 0:
            sys.exit(f"{binary} failed with code {run.returncode}")
        (arguments.out / f"limits-{name}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
