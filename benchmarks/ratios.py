"""Stored ratios of a machine, and the ratios of a new run that fell below them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "ratios"
LARGEST_FALL = 0.15  # relative to the stored ratio


@dataclass(frozen=True)
class Row:
    """A ratio, stored and measured; None if missing."""

    name: str
    stored: float | None
    measured: float | None

    @property
    def change(self) -> float:
        """Measured over stored, less one; 0 when either is missing."""
        return self.measured / self.stored - 1 if self.stored and self.measured else 0.0

    @property
    def verdict(self) -> str:
        """fell, missing (stored, not measured), new (measured, not stored) or kept."""
        if self.measured is None:
            return "missing"
        if self.stored is None:
            return "new"
        return "fell" if self.change < -LARGEST_FALL else "kept"


def compare(stored: Mapping[str, float], measured: Mapping[str, float]) -> list[Row]:
    """A row for every name on either side."""
    names = dict.fromkeys([*stored, *measured])
    return [Row(name, stored.get(name), measured.get(name)) for name in names]


def fallen(rows: Iterable[Row]) -> list[Row]:
    """The rows whose ratio fell."""
    return [row for row in rows if row.verdict == "fell"]


def keep(
    choose: Callable[[list[float]], float],
    first: Mapping[str, float],
    again: Mapping[str, float],
) -> dict[str, float]:
    """Combine two measurements.

    A check uses the larger ratio: noise lowers one of them, a slower kernel both. Storing uses the
    smaller one: a lucky ratio would make every later run a regression.
    """
    return {
        name: choose(values)
        for name in dict.fromkeys([*first, *again])
        if (values := [side[name] for side in (first, again) if name in side])
    }


def table(rows: Iterable[Row]) -> str:
    """A Markdown table, worst rows first."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    order = {"fell": 0, "missing": 1, "kept": 2, "new": 3}
    ranked = sorted(rows, key=lambda row: (order[row.verdict], row.change))
    return "\n".join(
        [
            "| ratio | stored | measured | change | |",
            "|---|---|---|---|---|",
            *(
                f"| {row.name.replace(' | ', ': ')} | {number(row.stored)} "
                f"| {number(row.measured)} | {row.change:+.0%} | {row.verdict} |"
                for row in ranked
            ),
        ]
    )


def path_for(machine: Mapping[str, Any]) -> Path:
    """The file of machines of this kind: ratios of other kinds are not comparable."""
    bf16 = machine["isa"] == "avx512" and "avx512_bf16" in machine["features"]
    isa = "avx512_bf16" if bf16 else machine["isa"]
    return FOLDER / f"{isa}-{machine['threads']}threads.json"


def load(path: Path) -> dict[str, float]:
    """The stored ratios by name."""
    return dict(json.loads(path.read_text())["ratios"])


def store(path: Path, machine: Mapping[str, Any], measured: Mapping[str, float]) -> None:
    """Write ratios with the machine they come from; stored rows that were not measured are kept."""
    kept = load(path) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": dict(machine), "ratios": dict(sorted({**kept, **measured}.items()))}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
