"""Reports the results of a run of language models against the targets, in Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from pathlib import Path

import results

# Targets of ours over the best peer of the same precision.
TARGETS = {
    ("bfloat16", "prefill"): 2.0,
    ("bfloat16", "decode"): 1.3,
    ("float32", "prefill"): 1.0,
    ("float32", "decode"): 0.95,
    **{(scheme, "prefill"): 2.0 for scheme in ("w8a16", "w8a8_dynamic", "w4a16")},
    **{(scheme, "decode"): 1.3 for scheme in ("w8a16", "w8a8_dynamic", "w4a16")},
}
LENGTHS = [128, 512, 2048]
# Parts of a model and the C++ benchmarks, by file name.
PARTS = {
    "matmul": "Matmuls, weights from memory",
    "attention": "Attention",
    "convolution": "Convolutions of ResNet-50 and MobileNet",
    "networks": "Networks whose files are float32",
    "detection": "Suppression, RoiAlign and LSTM",
    "creation": "Creation of sessions",
    "aten": "Operators of torch and gradients beside its CPU device",
    "calls": "Calls of fused operators, the host's time, beside torch's add on the same device",
}
# Targets of ours over the best peer: geometric mean over all shapes, and worst shape.
AMX_PRODUCTS = (1.3, 1.1)
PRODUCTS = (1.0, 1.0)  # float32, every dtype on a machine without AMX, and parts of vision models
PREFILL_ATTENTION = (2.0, 2.0)  # bfloat16
ATEN = (1.0, 0.5)  # none takes twice the CPU's time
CALLS = (0.77, 0.77)  # a call may cost 1.3 of add's
LIMITS = {
    "gemm": "Matmuls beside the machine's multiply-add rate (/peak) and read rate (/read)",
    "launch": "Launches, in nanoseconds, beside a bare futex",
}
MEMORY_TARGET = 1.15  # peak resident memory over packed weights and cache
CASE = re.compile(
    r"(?P<model>\S+) (?P<dtype>\S+) (?P<phase>prefill|decode) @?(?P<length>\d+)"
    r"(?: batch (?P<rows>\d+))?$"
)


def verdict(ratio: float, target: float | None) -> str:
    """By how much a ratio meets its target or misses it."""
    if target is None:
        return "-"
    if ratio >= target:
        return f"met ({ratio / target - 1:+.0%})"
    return f"**missed by {1 - ratio / target:.0%}**"


def target_table(run: results.Run) -> str:
    """Best (median) tokens/s of every engine, and our ratio to the best peer."""
    engines = list(dict.fromkeys(m.engine for m in run.measurements if m.engine not in run.ours))
    header = ["tokens/s, best (median)", *run.ours, *engines, "ours / best peer", "target", ""]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for case in run.cases():
        match = CASE.match(case)
        by_engine = run.of(case)
        ours = by_engine.get("npu")
        if not match or not ours:
            continue
        ratios = {e: results.ratio(ours, by_engine[e]) for e in engines if e in by_engine}
        rounds = len(ours.seconds)
        plural = "s" if rounds > 1 else ""
        cells = [f"{match['phase']} {match['length']} ({rounds} round{plural})"]
        for engine in [*run.ours, *engines]:
            m = by_engine.get(engine)
            cells.append(f"{m.best():.4g} ({m.median():.4g})" if m else "-")
        target = TARGETS.get((match["dtype"], match["phase"]))
        if ratios:
            best = min(ratios, key=lambda engine: ratios[engine])
            cells += [f"{ratios[best]:.2f} ({best})", f"≥ {target}" if target else "-"]
            cells.append(verdict(ratios[best], target))
        else:
            cells += ["-"] * 3
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def best_ratio(run: results.Run, case: str) -> float | None:
    """Ratio of our best engine to the best peer in a case, if both were measured."""
    by_engine = run.of(case)
    mine = [by_engine[engine] for engine in run.ours if engine in by_engine]
    peers = [m for engine, m in by_engine.items() if engine not in run.ours]
    if not mine or not peers:
        return None
    return max(min(results.ratio(ours, peer) for peer in peers) for ours in mine)


def part_targets(kind: str, run: results.Run, amx: bool) -> str:
    """Ratios of a part by rows, dtype, kind of convolution or case, next to their target."""
    groups: dict[str, list[float]] = {}
    for case in run.cases():
        first, *_, last = case.split()
        name = case
        if kind == "matmul":
            name = f"{first} {last}"
        elif kind == "aten":
            name = last
        elif kind == "convolution":
            name = f"{first} depthwise" if "depthwise" in case else first
        if (found := best_ratio(run, case)) is not None:
            groups.setdefault(name, []).append(found)
    lines = [
        "| ours / best peer | geometric mean | worst | targets | |",
        "|---|---|---|---|---|",
    ]
    for name, found in groups.items():
        half = not name.startswith("float32")
        if kind == "matmul":
            targets = AMX_PRODUCTS if amx and half else PRODUCTS
        elif name.startswith("bfloat16 prefill"):
            targets = PREFILL_ATTENTION
        elif kind == "aten":
            targets = ATEN
        elif kind == "calls":
            targets = CALLS
        elif kind in ("convolution", "detection"):
            targets = PRODUCTS
        else:
            continue
        values = statistics.geometric_mean(found), min(found)
        short = min(zip(values, targets, strict=True), key=lambda pair: pair[0] / pair[1])
        lines.append(
            f"| {name} | {values[0]:.2f} | {values[1]:.2f} | ≥ {targets[0]}, {targets[1]} "
            f"| {verdict(*short)} |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def not_measured(run: results.Run) -> str:
    """Name the required rows that a run lacks."""
    matches = [CASE.match(case) for case in run.cases()]
    rows = {f"{m['phase']} {m['length']}" for m in matches if m}
    wanted = [f"{phase} {n}" for phase in ("prefill", "decode") for n in LENGTHS]
    lacking = [row for row in wanted if row not in rows]
    return f"Not measured in this run: {', '.join(lacking)}.\n" if lacking else ""


def forced_isa(path: Path) -> str:
    """The value of ORT_NPU_ISA for a file of results."""
    match = re.search(r"-(amx|avx512|avx2|portable)$", path.stem)
    return match[1] if match else ""


def with_isa(isa: str) -> str:
    """The suffix of a title for it."""
    return f" with `ORT_NPU_ISA={isa}`" if isa else ""


def _startup(path: Path) -> str:
    import json

    lines = [
        "| session of | creation, s | weights + cache, MB | peak resident, MB | ratio | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(path.read_text()):
        ratio = row["peak"] / (row["weights"] + row["cache"])
        missed = ratio / MEMORY_TARGET - 1
        lines.append(
            f"| {row['name']} | {row['seconds']:.2f} "
            f"| {row['weights'] / 1e6:.0f} + {row['cache'] / 1e6:.0f} | {row['peak'] / 1e6:.0f} "
            f"| {ratio:.2f} | ≤ {MEMORY_TARGET} "
            f"| {'met' if missed <= 0 else f'**missed by {missed:.0%}**'} |"
        )
    return "\n".join(lines) + "\n"


def text(out: Path, missing: Mapping[str, Mapping[str, str]]) -> str:
    """All results in `out`, and the machine that they were measured on."""
    machine = results.machine()
    parts = [
        f"Measured on {machine['date']}: {machine['cpu']}, {machine['threads']} threads, "
        f"{machine['memory_gib']} GiB, kernels `{machine['isa']}` "
        f"(features: {', '.join(machine['features'])}); {machine['system']}, "
        f"onnxruntime {machine['onnxruntime']}.\n"
    ]
    amx = any(feature.startswith("amx") for feature in machine["features"])
    if not amx:
        parts.append(
            "**This machine has no AMX.** The targets are written for one that has: bfloat16 rows "
            "here run on AVX-512 vector instructions, ours and the peers' alike.\n"
        )
    for kind, title in (("llm", ""), ("batch", ": rows of a decode step"), ("layers", ": depth")):
        for path in sorted(out.glob(f"{kind}-*-*.json"), key=lambda p: p.stem):
            run = results.load(path)
            match = CASE.match(run.cases()[0])
            if not match:
                continue
            isa = with_isa(forced_isa(path))
            parts.append(f"### {match['model']}, {match['dtype']}{title}{isa}\n")
            parts.append(target_table(run) if kind == "llm" else results.table(run))
            if kind == "llm" and (lacking := not_measured(run)):
                parts.append(lacking)
            if kind == "llm":
                reasons = missing.get(match["dtype"], {})
                measured = {m.engine for m in run.measurements}
                absent = [f"{p}: {why}." for p, why in reasons.items() if p not in measured]
                parts += [f"Not measured: {reason}\n" for reason in absent]
    for kind, title in PARTS.items():
        for path in sorted(out.glob(f"{kind}-*.json"), key=lambda p: p.stem):
            dtype, isa = path.stem.removeprefix(f"{kind}-"), forced_isa(path)
            dtype = dtype.removesuffix(f"-{isa}")
            parts.append(f"### {title}, {dtype}{with_isa(isa)}\n")
            run = results.load(path)
            tiles = isa == "amx" if isa else amx
            parts += [*filter(None, [part_targets(kind, run, tiles)]), results.table(run)]
    for kind, title in LIMITS.items():
        if (path := out / f"limits-{kind}.txt").exists():
            parts.append(f"### {title}\n\n```\n{path.read_text().rstrip()}\n```\n")
    startup = out / "startup.json"
    if startup.exists():
        parts += ["### Session creation and memory\n", _startup(startup)]
    return "\n".join(parts)
