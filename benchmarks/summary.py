"""Generates docs/performance.md: a short summary of each measured machine, from its report.

A report (``benchmarks/reports/<machine>.md``) begins with its summary; the rows follow below.
"""

from __future__ import annotations

from pathlib import Path

import report
import results

ROOT = Path(__file__).resolve().parent.parent
REPORTS = Path(__file__).resolve().parent / "reports"
DOCS = ROOT / "docs" / "performance.md"
ROWS = "## Every row"

HEAD = """\
# Performance

Results are ratios within one run on one machine: engines take turns, round by round, each in a
process that is stopped between its turns; outputs are compared before anything is timed. A ratio is
the median over the rounds of ours to the best peer, the one for which it is smallest. Weights,
cache and activations have the same precision in every engine, and every engine computes logits for
the last token only, copies them to the host and takes the argmax there. Quantised models (`w8a16`,
`w8a8_dynamic`, `w4a16`) are beside peers with weights of as many bits, each quantised by its own
tool from the same checkpoint. All round activations to int8 for products (ours `w8a16` and `w4a16`
by `inner_precise=1`); our head has 8 bits (`quant_head=True`) and our cache is bfloat16, peers'
caches are float32 or float16. The perplexities in [models](models.md) are those of exports without
these two options.

Peers: onnxruntime's CPUExecutionProvider on the graph of onnxruntime-genai's builder (with
GroupQueryAttention and a cache updated in place), onnxruntime-genai, OpenVINO (a stateful graph),
llama.cpp and torch (transformers, eager). `make bench` installs them into `build/bench/peers` and
measures, `python benchmarks/llm.py --report-only --write-docs` writes this page, and `make
bench-check` compares the ratios with those stored in `benchmarks/ratios/`. [Hardware
limits](performance_limits.md) explains why targets are missed, [in a section of its
own](performance_limits.md#tile-registers) for machines with tile registers. Nothing was timed on
ARM64 ([what was run there](environment.md#levels-of-kernels)).
"""


def of_models(out: Path) -> str:
    """Ratios of ours to the best peer, one line per model; ratios below their target are bold."""
    phases = [f"{phase} {n}" for phase in ("prefill", "decode") for n in report.LENGTHS]
    lines = [
        "| ours / best peer | " + " | ".join(phases) + " | targets: prefill, decode |",
        "|---" * (len(phases) + 2) + "|",
    ]
    for path in sorted(out.glob("llm-*-*.json"), key=lambda p: p.stem):
        run = results.load(path)
        matches = [m for m in map(report.CASE.match, run.cases()) if m]
        if not matches:
            continue
        cells: dict[str, str] = {}
        for match in matches:
            target = report.TARGETS.get((match["dtype"], match["phase"]), 0)
            found = report.best_ratio(run, match[0])
            text = "-" if found is None else f"{found:.2f}"
            below = found is not None and found < target
            cells[f"{match['phase']} {match['length']}"] = f"**{text}**" if below else text
        first = matches[0]
        targets = [report.TARGETS.get((first["dtype"], phase)) for phase in ("prefill", "decode")]
        name = f"{first['model']}, {first['dtype']}{report.with_isa(report.forced_isa(path))}"
        values = [cells.get(phase, "-") for phase in phases]
        said = ", ".join(f"≥ {t}" if t else "-" for t in targets)
        lines.append("| " + " | ".join([name, *values, said]) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def of_parts(out: Path, amx: bool) -> str:
    """Matmul and attention: geometric mean over all shapes per row count, and the worst shape."""
    lines = []
    for kind, title in report.PARTS.items():
        for path in sorted(out.glob(f"{kind}-*.json"), key=lambda p: p.stem):
            isa = report.forced_isa(path)
            if isa:
                continue  # levels below the machine's own are only in the report
            rows = report.part_targets(kind, results.load(path), amx).splitlines()[2:]
            lines += [f"| {title}: {row[2:]}" for row in rows]
    head = ["| ours / best peer | geometric mean | worst | targets | |", "|---" * 5 + "|"]
    return "\n".join([*head, *lines]) + "\n" if lines else ""


def of_machine(out: Path) -> str:
    """The summary of one machine."""
    machine = results.machine()
    amx = any(feature.startswith("amx") for feature in machine["features"])
    return "\n".join(
        filter(
            None,
            [
                f"## {machine['cpu']}, {machine['threads']} threads, kernels "
                f"`{machine['isa']}`, {'with' if amx else 'without'} AMX\n",
                of_models(out),
                of_parts(out, amx),
            ],
        )
    )


def write(out: Path, text: str, name: str) -> None:
    """Write this machine's report, `text` below its summary, and docs/performance.md."""
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{name}.md").write_text(f"{of_machine(out)}\n{ROWS}\n\n{text}")
    write_docs()


def docs() -> str:
    """docs/performance.md from all reports."""
    parts = [HEAD]
    for path in sorted(REPORTS.glob("*.md")):
        summary = path.read_text().split(ROWS, 1)[0].rstrip()
        link = f"../{path.relative_to(ROOT).as_posix()}"
        parts.append(f"{summary}\n\n[Every row of this machine]({link}).\n")
    return "\n".join(parts)


def write_docs() -> None:
    """Write docs/performance.md."""
    DOCS.write_text(docs())
