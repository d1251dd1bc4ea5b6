"""Tables of the serving benchmark, and docs/performance_serving.md with their summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import results
from report import verdict

SERVER, ENGINE = "npu", "npu, engine alone"
COLUMNS = ["tokens/s", "first token", "99 %", "next token", "99 %", "tokens of an answer"]
_SPEED, _FIRST = 0, 1  # columns with a target
CLIENTS = 16  # that the targets are for
# Throughput over the best peer, its time to the first token over ours, server over engine alone.
TARGETS = (1.5, 1.0, 0.95)
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "performance_serving.md"
MACHINES = ROOT / "benchmarks" / "reports" / "serving"  # a section of the page for each

HEAD = """\
# Performance of the service

`onnxruntime-npu serve` under load, beside other engines with continuous batching on the same
machine, in one run for each table: services take turns, load by load and round by round, and only
one has work at a time. Clients send one request after the other, each with another prompt of
random tokens; answers are greedy. Times are in milliseconds, medians over the rounds of the median
and the 99th percentile of a load. A ratio is the median over the rounds.

Our server and llama.cpp's are asked over HTTP, by clients on the same cores. *npu, engine alone* is
the server's engine without the server; onnxruntime-genai's engine on its CPU provider, which has
no continuous batching there, and openvino-genai's are driven without a server, too. bfloat16 is the
precision of our weights, cache and activations and of llama.cpp's weights; onnxruntime's CPU
provider has no such products, so that its model is float32, and openvino-genai, which computes in
bfloat16, reads a file of float16. int4 is our `w4a16`, and what each peer's own tool makes of the
checkpoint. SmolLM2-135M has its real weights, the other model random ones.

`python benchmarks/services.py --write-docs` measures and writes this page's section of the machine.
[Hardware limits](performance_limits_serving.md) explains missed targets.
"""


@dataclass
class Load:
    """What a service did with a number of clients: columns of each round."""

    clients: int
    service: str
    rounds: list[list[float]] = field(default_factory=list)

    def medians(self) -> list[float]:
        """Each column's median."""
        return [statistics.median(column) for column in zip(*self.rounds, strict=True)]

    def over(self, other: Load, column: int) -> float:
        """This one's column over another's: the median of the rounds."""
        # The last round may have been cut short.
        pairs = zip(self.rounds, other.rounds, strict=False)
        return statistics.median(mine[column] / theirs[column] for mine, theirs in pairs)


@dataclass
class Table:
    """The loads of a model and a dtype, and the reasons for missing services."""

    title: str
    loads: list[Load] = field(default_factory=list)
    missing: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Table:
        """Return one that was stored as JSON."""
        loads = [Load(**load) for load in stored["loads"]]
        return cls(stored["title"], loads, stored["missing"])

    def load(self, clients: int, service: str) -> Load | None:
        """Return a service's, None if it was not measured."""
        for load in self.loads:
            if (load.clients, load.service) == (clients, service):
                return load
        return None

    def add(self, clients: int, service: str, columns: list[float]) -> None:
        """Take a round."""
        if (load := self.load(clients, service)) is None:
            self.loads.append(load := Load(clients, service))
        load.rounds.append(columns)

    def markdown(self) -> str:
        """Return all rows."""
        lines = [
            f"### {self.title}\n",
            "| clients | service | " + " | ".join(COLUMNS) + " | server / this | rounds |",
            "|---" * (len(COLUMNS) + 4) + "|",
        ]
        for load in sorted(self.loads, key=lambda load: load.clients):
            speed, *seconds, tokens = load.medians()
            cells = [f"{speed:.1f}", *(f"{1000 * value:.1f}" for value in seconds), f"{tokens:.1f}"]
            ours = self.load(load.clients, SERVER)
            is_ours = ours is None or ours is load
            ratio = "-" if is_ours else f"{ours.over(load, _SPEED):.2f}"
            name, count = load.service, len(load.rounds)
            lines.append(f"| {load.clients} | {name} | {' | '.join(cells)} | {ratio} | {count} |")
        lines += ["", *(f"Without {name}: {reason}\n" for name, reason in self.missing.items())]
        return "\n".join(lines)

    def verdicts(self) -> str | None:
        """Return the row of the summary; None without the load that has targets."""
        ours, engine = self.load(CLIENTS, SERVER), self.load(CLIENTS, ENGINE)
        peers = [
            load
            for load in self.loads
            if load.clients == CLIENTS and load.service not in (SERVER, ENGINE)
        ]
        if ours is None or engine is None or not peers:
            return None
        speed = {peer.service: ours.over(peer, _SPEED) for peer in peers}
        wait = {peer.service: peer.over(ours, _FIRST) for peer in peers}
        cells = [self.title]
        for of_peers, target in zip((speed, wait), TARGETS, strict=False):
            best = min(of_peers, key=of_peers.__getitem__)
            cells += [f"{of_peers[best]:.2f} ({best})", verdict(of_peers[best], target)]
        cost = ours.over(engine, _SPEED)
        return f"| {' | '.join([*cells, f'{cost:.2f}', verdict(cost, TARGETS[2])])} |"


def summary(tables: Iterable[Table]) -> str:
    """Return the ratios that have targets."""
    speed, wait, cost = TARGETS
    header = [
        f"{CLIENTS} clients",
        *(f"throughput, ours / best peer (≥ {speed})", ""),
        *(f"first token, best peer / ours (≥ {wait})", ""),
        *(f"throughput, server / engine alone (≥ {cost})", ""),
    ]
    rows = filter(None, (table.verdicts() for table in tables))
    return "\n".join(["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *rows]) + "\n"


def write_docs(tables: list[Table], note: str) -> None:
    """Write the section of this machine, and the page of all; ``note`` is below its name."""
    machine = results.machine()
    place = (
        f"## {machine['cpu']}, {machine['threads']} threads, kernels `{machine['isa']}`\n\n"
        f"Measured on {machine['date']}. {note}".rstrip()
        + "\n"
    )
    parts = [place, summary(tables), *(table.markdown() for table in tables)]
    MACHINES.mkdir(exist_ok=True)
    name = f"{machine['isa']}-{machine['threads']}threads.md"
    (MACHINES / name).write_text("\n".join(parts).rstrip() + "\n")
    DOCS.write_text(page())


def page() -> str:
    """Return docs/performance_serving.md from the sections of all machines."""
    return "\n".join([HEAD, *(path.read_text() for path in sorted(MACHINES.glob("*.md")))])
