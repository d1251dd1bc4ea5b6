"""Interleaved measurement of peers: every claim of speed is a ratio inside one run.

Each engine lives in its own process, so that thread pools and caches of one do not disturb another
more than a neighbour on the machine would. Rounds go through all engines in turn; best and median
of the rounds are both reported, and the ratio of an engine to its peer is taken from both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
# onnxruntime's and torch's idle threads spin for tens of milliseconds before they sleep, and would
# take cores from whichever engine has the next turn.
SETTLE_SECONDS = 0.1


def arguments_parser(description: str, dtypes: list[str], rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds a case")
    threads = int(os.environ.get("ORT_NPU_NUM_THREADS") or len(os.sched_getaffinity(0)))
    parser.add_argument("--threads", type=int, default=threads, help="of every engine")
    parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=dtypes, help="one run each")
    out = ROOT / "build" / "bench"
    parser.add_argument("--out", type=Path, default=out, help="folder of tables and samples")
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, make the folder of results and hand the thread count down."""
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["ORT_NPU_NUM_THREADS"] = str(arguments.threads)  # the engines' processes inherit it
    return arguments


class EngineFailed(RuntimeError):
    """An engine's process reported an error; the text is its traceback."""


def _serve(make: Callable[[], Any], connection: Connection) -> None:
    try:
        engine = make()
        connection.send(("ok", None))
    except Exception:
        connection.send(("error", traceback.format_exc()))
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:  # whoever asked is gone
            return
        if request is None:
            return
        method, arguments = request
        try:
            connection.send(("ok", getattr(engine, method)(*arguments)))
        except Exception:
            connection.send(("error", traceback.format_exc()))


class Engine:
    """A peer in a process of its own; method calls are forwarded one at a time."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, child), daemon=True)
        self._process.start()
        child.close()
        self._receive()

    def _receive(self) -> Any:
        try:
            status, value = self._connection.recv()
        except EOFError:
            raise EngineFailed(f"{self.name}: the process died") from None
        if status == "error":
            raise EngineFailed(f"{self.name}:\n{value}")
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Run `method` in the engine's process and return its result."""
        self._connection.send((method, arguments))
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join(timeout=30)


@dataclass
class Measurement:
    """Seconds of one engine for one case, a sample a round."""

    case: str
    engine: str
    work: float  # units of work a sample did (tokens, calls)
    unit: str
    seconds: list[float] = field(default_factory=list)

    def best(self) -> float:
        """Units a second in the fastest round."""
        return self.work / min(self.seconds)

    def median(self) -> float:
        """Units a second in the median round."""
        return self.work / statistics.median(self.seconds)


def interleave(
    cases: list[tuple[str, float, str, str, tuple[Any, ...]]],
    engines: list[Engine],
    rounds: int,
) -> list[Measurement]:
    """Time (case, work, unit, method, arguments) on every engine, `rounds` times, in turn.

    `method` returns the seconds it measured itself, so that set-up inside it is not counted. The
    engines are closed in the end.
    """
    results = {
        (case, engine.name): Measurement(case, engine.name, work, unit)
        for case, work, unit, _, _ in cases
        for engine in engines
    }
    samples = len(cases) * (rounds + 1) * len(engines)
    with tqdm(total=samples, unit="sample", disable=None, leave=False) as bar:
        for case, _, _, method, arguments in cases:
            for number in range(rounds + 1):  # round 0 warms up and is not kept
                for engine in engines:
                    bar.set_description(f"{case}: {engine.name}, round {number} of {rounds}")
                    time.sleep(SETTLE_SECONDS)
                    seconds = engine.call(method, *arguments)
                    bar.update()
                    if number:
                        results[case, engine.name].seconds.append(seconds)
    for engine in engines:
        engine.close()
    return list(results.values())


def table(results: list[Measurement], ours: str, peers: list[str]) -> str:
    """A Markdown table: best and median a second, and ours over each peer (best / median)."""
    by_key = {(m.case, m.engine): m for m in results}
    cases = list(dict.fromkeys(m.case for m in results))
    lines = [
        "| case | unit | "
        + " | ".join([ours, *peers])
        + " | "
        + " | ".join(f"ours / {p}" for p in peers)
        + " |",
        "|---|---|" + "---|" * (1 + 2 * len(peers)),
    ]
    for case in cases:
        mine = by_key[case, ours]
        cells = [
            f"{by_key[case, e].best():.4g} ({by_key[case, e].median():.4g})" for e in [ours, *peers]
        ]
        ratios = [
            f"{mine.best() / peer.best():.2f} ({mine.median() / peer.median():.2f})"
            for peer in (by_key[case, p] for p in peers)
        ]
        lines.append(f"| {case} | {mine.unit}/s | " + " | ".join(cells + ratios) + " |")
    return "\n".join(lines)


def save(results: list[Measurement], path: Path) -> None:
    """Write every sample, so that another reading of the run stays possible."""
    path.write_text(
        json.dumps(
            [
                {
                    "case": m.case,
                    "engine": m.engine,
                    "work": m.work,
                    "unit": m.unit,
                    "seconds": m.seconds,
                }
                for m in results
            ],
            indent=1,
        )
    )


def plot(results: list[Measurement], title: str, path: Path) -> None:
    """Bars of the median, whiskers to the best, a group a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(m.case for m in results))
    engines = list(dict.fromkeys(m.engine for m in results))
    figure, axes = pyplot.subplots(1, len(cases), figsize=(3.2 * len(cases), 3.6), squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        mine = [m for m in results if m.case == case]
        medians = [m.median() for m in mine]
        axis.bar(
            range(len(mine)),
            medians,
            yerr=[[0] * len(mine), [m.best() - m.median() for m in mine]],
            color=[f"C{engines.index(m.engine)}" for m in mine],
        )
        axis.set_xticks(
            range(len(mine)), [m.engine for m in mine], rotation=35, ha="right", fontsize=7
        )
        axis.set_title(case, fontsize=9)
        axis.set_ylabel(f"{mine[0].unit}/s")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
