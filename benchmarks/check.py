#!/usr/bin/env python3
"""`make bench-check`: fails if a ratio to a peer fell by more than 15 % below the stored one.

Runs the benchmarks below with few rounds and compares the ratios to those stored for this
kind of machine in benchmarks/ratios/. A row that fell is measured again with more rounds first.
Exit codes: 0 no row fell, 1 a row fell or is missing, 2 nothing is stored for this kind.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import harness
import plots
import ratios
import results

HERE = Path(__file__).resolve().parent
# Cases of each benchmark: enough to cover every kind of kernel in minutes.
SUITES = {
    "ops": "",
    "calls": "",
    "attention": "prefill 512|decode over (1k|8k)",
    "matmul": "(576x1536|896x4864) M=(1|16|128)$",
    "llm": "SmolLM2-135M (float32|bfloat16) .*(128|512)$",
}


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--store", action="store_true", help="keep this run's ratios, don't compare"
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds a case")
    parser.add_argument("--retries", type=int, default=2, help="of what fell or is stored")
    suites = list(SUITES)
    parser.add_argument("--suites", nargs="+", default=suites, choices=suites, help="to run")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    out = HERE.parent / "build" / "bench" / "check"
    parser.add_argument("--out", type=Path, default=out, help="folder of samples")
    return parser


def measure(suite: str, cases: str, rounds: int, out: Path) -> dict[str, float]:
    """Ratios of the cases of a benchmark whose names match, named `suite: case | ours / peer`."""
    folder = out / suite
    for earlier in folder.glob(f"{suite}-*.json"):  # models and those of peers are kept
        earlier.unlink()
    script = [sys.executable, str(HERE / f"{suite}.py")]
    options = ["--rounds", str(rounds), "--only", cases, "--out", str(folder)]
    subprocess.run(script + options, check=True)
    runs = [results.load(path) for path in sorted(folder.glob(f"{suite}-*.json"))]
    return {f"{suite}: {name}": r for run in runs for name, r in results.ratios(run).items()}


def cases_of(names: list[str]) -> dict[str, str]:
    """A pattern per suite that matches the cases of these rows and no others."""
    cases: dict[str, list[str]] = {}
    for name in names:
        suite, case = name.split(" | ")[0].split(": ", 1)
        cases.setdefault(suite, []).append(re.escape(case))
    return {suite: f"^({'|'.join(dict.fromkeys(c))})$" for suite, c in cases.items()}


def main() -> int:
    arguments = arguments_parser().parse_args()
    harness.require()
    if "llm" in arguments.suites:
        plots.require()
    machine = results.machine()
    path = ratios.path_for(machine)
    if not path.exists() and not arguments.store:
        print(f"no ratios are stored for this kind of machine ({path.name}): run with --store")
        return 2
    wanted = {} if arguments.store else ratios.load(path)
    wanted = {
        name: value
        for name, value in wanted.items()
        if name.split(": ")[0] in arguments.suites and re.search(arguments.only, name)
    }
    patterns = {suite: SUITES[suite] for suite in arguments.suites}
    if arguments.only:
        patterns = cases_of(list(wanted)) if wanted else dict.fromkeys(patterns, arguments.only)
    measured: dict[str, float] = {}
    for suite, pattern in patterns.items():
        measured |= measure(suite, pattern, arguments.rounds, arguments.out)
    if arguments.store:
        for _ in range(arguments.retries):
            for suite, pattern in patterns.items():
                again = measure(suite, pattern, arguments.rounds, arguments.out)
                measured = ratios.keep(min, measured, again)
        ratios.store(path, machine, measured)
        print(f"{len(measured)} ratios stored: {path}")
        return 0
    for _ in range(arguments.retries):
        names = [row.name for row in ratios.fallen(ratios.compare(wanted, measured))]
        for suite, pattern in cases_of(names).items():
            again = measure(suite, pattern, 2 * arguments.rounds + 1, arguments.out)
            measured = ratios.keep(max, measured, again)
    rows = ratios.compare(wanted, measured)
    print(ratios.table(rows))
    bad = [row for row in rows if row.verdict in ("fell", "missing")]
    for row in bad:
        print(f"{row.verdict}: {row.name}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
