"""Plots of a run: speed versus length, cost versus batch, time versus layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import results
from report import CASE


def _lines(axis: Any, points: dict[str, list[tuple[int, float]]]) -> None:
    if not points:
        axis.set_axis_off()
        return
    for engine, line in points.items():
        xs, ys = zip(*sorted(line), strict=True)
        axis.plot(xs, ys, marker="o", linewidth=2.2 if engine == "npu" else 1.2, label=engine)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _gather(
    runs: list[results.Run], phase: str, key: str, per_step: bool
) -> dict[str, list[tuple[int, float]]]:
    """Points by engine: (length, rows or layers, median tokens/s or ms per step)."""
    points: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        for m in run.measurements:
            match = CASE.match(m.case)
            if not match or match["phase"] != phase:
                continue
            layers = match["model"].rsplit("-", 1)[-1].removesuffix("layers")
            x = int({"length": match["length"], "rows": match["rows"], "layers": layers}[key])
            rows = int(match["rows"] or 1)
            value = 1e3 * rows / m.median() if per_step else m.median()
            points.setdefault(m.engine, []).append((x, value))
    return points


def require() -> None:
    """Exit, with how to mend it, if plots cannot be drawn: before hours of measuring."""
    remedy = "it draws the plots; install it with pip install 'matplotlib>=3.8'"
    harness.require(["matplotlib"], remedy)


def write(out: Path) -> None:
    """Plot the results in `out`: a figure per model and dtype, one for batches, one for layers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for path in sorted(out.glob("llm-*-*.json")):
        figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
        for axis, phase in zip(axes, ("prefill", "decode"), strict=True):
            _lines(axis, _gather([results.load(path)], phase, "length", per_step=False))
            axis.set(title=phase, xlabel="tokens", ylabel="tokens/s (median)", xscale="log")
        figure.suptitle(path.stem)
        figure.tight_layout()
        figure.savefig(path.with_suffix(".png"), dpi=120)
        pyplot.close(figure)
    for kind, key in (("batch", "rows"), ("layers", "layers")):
        for dtype in ("float32", "bfloat16"):
            runs = [results.load(path) for path in sorted(out.glob(f"{kind}-*-{dtype}.json"))]
            points = _gather(runs, "decode", key, per_step=True)
            if not points:
                continue
            figure, axis = pyplot.subplots(figsize=(5, 4))
            _lines(axis, points)
            axis.set(title=f"decode, {dtype}", xlabel=key, ylabel="ms a step (median)")
            figure.tight_layout()
            figure.savefig(out / f"{kind}-{dtype}.png", dpi=120)
            pyplot.close(figure)
