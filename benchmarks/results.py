"""Samples of a run: their statistics, their storage, and the machine that they come from."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class Measurement:
    """Seconds of one engine for one case, one sample per round."""

    case: str
    engine: str
    work: float  # units of work per sample (tokens, calls)
    unit: str
    seconds: list[float]

    def best(self) -> float:
        """Units per second in the fastest round."""
        return self.work / min(self.seconds)

    def median(self) -> float:
        """Units per second in the median round."""
        return self.work / statistics.median(self.seconds)


@dataclass
class Run:
    """Measurements, and which of their engines are ours."""

    ours: list[str]
    measurements: list[Measurement]

    def cases(self) -> list[str]:
        """Names of the cases, in order."""
        return list(dict.fromkeys(m.case for m in self.measurements))

    def of(self, case: str) -> dict[str, Measurement]:
        """The measurements of a case by engine."""
        return {m.engine: m for m in self.measurements if m.case == case}


def ratio(ours: Measurement, peer: Measurement) -> float:
    """Speed of ours relative to the peer: the median of the rounds' ratios.

    The samples of a round are adjacent in time, so that a slow phase of the machine affects both;
    this does not hold for the best or the median of each side.
    """
    return statistics.median(p / o for o, p in zip(ours.seconds, peer.seconds, strict=True))


def ratios(run: Run) -> dict[str, float]:
    """Ratios of our engines to their peers, named `case | ours / peer`."""
    found = {}
    for case in run.cases():
        by_engine = run.of(case)
        for mine in run.ours:
            for name, peer in by_engine.items():
                if name not in run.ours and mine in by_engine:
                    found[f"{case} | {mine} / {name}"] = round(ratio(by_engine[mine], peer), 3)
    return found


def table(run: Run) -> str:
    """A Markdown table: best (median) per second, and ours over each peer (best / median)."""
    engines = list(dict.fromkeys(m.engine for m in run.measurements))
    peers = [engine for engine in engines if engine not in run.ours]
    pairs = [(mine, peer) for mine in run.ours for peer in peers]
    header = ["case", "unit", *run.ours, *peers, *(f"{mine} / {peer}" for mine, peer in pairs)]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for case in run.cases():
        by_engine = run.of(case)
        cells = [case, f"{next(iter(by_engine.values())).unit}/s"]
        for engine in [*run.ours, *peers]:
            m = by_engine.get(engine)
            cells.append(f"{m.best():.4g} ({m.median():.4g})" if m else "-")
        for mine, peer in pairs:
            a, b = by_engine.get(mine), by_engine.get(peer)
            both = a is not None and b is not None
            cells.append(
                f"{a.best() / b.best():.2f} ({a.median() / b.median():.2f})" if both else "-"
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def save(run: Run, path: Path) -> None:
    """Write every sample; cases of an earlier run that were not measured now are kept."""
    kept = load(path).measurements if path.exists() else []
    cases = set(run.cases())
    together = [*(m for m in kept if m.case not in cases), *run.measurements]
    content = {"ours": run.ours, "measurements": [asdict(m) for m in together]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> Run:
    """Read a file of `save`."""
    content = json.loads(path.read_text())
    return Run(content["ours"], [Measurement(**m) for m in content["measurements"]])


def machine() -> dict[str, Any]:
    """The machine properties that results depend on."""
    import onnxruntime
    from onnxruntime_npu import _C, __version__

    fields = (line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines())
    names = [value.strip() for key, value in (f for f in fields if len(f) == 2) if "name" in key]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "isa": _C.isa(),
        "features": sorted(name for name, present in _C.cpu_features().items() if present),
        "threads": _C.num_threads(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "onnxruntime_npu": __version__,
        "onnxruntime": onnxruntime.__version__,
    }
