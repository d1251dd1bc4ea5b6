#!/usr/bin/env python3
"""Kernels and launches relative to the machine's limits: the C++ benchmarks, run for the docs.

`gemm_benchmark` compares GEMMs with the peak multiply-add rate and the best of several read loops,
`launch_benchmark` compares the runtime with a bare futex, each in the same run.
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
    arguments = harness.parse_arguments(parser, packages=[])
    options = {
        "gemm": ["--dtype", ",".join(arguments.dtypes), "--rounds", str(arguments.rounds)],
        "launch": [],
    }
    programs = {name: arguments.binaries / f"{name}_benchmark" for name in BENCHMARKS}
    if missing := [binary.name for binary in programs.values() if not binary.is_file()]:
        sys.exit(
            f"expected {', '.join(missing)} in {arguments.binaries}; after `make build`: "
            f"cmake --build {arguments.binaries} --target {' '.join(missing)}"
        )
    for name, binary in programs.items():
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
