#!/usr/bin/env python3
"""Language models end to end against their peers on this machine, interleaved in one run.

SmolLM2-135M with its real weights, a model of Qwen2.5-0.5B's shape with random ones, and small ones
of Mixtral's and DeepSeek-V3's shape, which are beside transformers' eager model alone. Peers have
their own environment (build/bench/peers) and read models made from the same checkpoint:
onnxruntime's CPUExecutionProvider (on our own file and on the graph of onnxruntime-genai's
builder), onnxruntime-genai, OpenVINO, llama.cpp and torch, each at the same precision of weights
and cache. Every engine computes the logits of the last token only; they are compared before
anything is timed.

Quantised models (w8a16, w8a8_dynamic, w4a16) are ours with a head of 8 bits, a cache of bfloat16
and activations that are rounded to int8 for products (w8a16 and w4a16 by inner_precise=1); peers
have weights of as many bits, quantised by their own tools from the same checkpoint: the builder's
int8 and int4, llama.cpp's q8_0 and q4_0, OpenVINO's compressed weights. All of these peers quantise
activations to int8.

A run can be split with --models, --dtypes, --only: results of other cases are kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from typing import Any

import harness
import llm_engines
import models
import plots
import ratios
import report
import results
import summary
from peers import PEERS, Peers

FLOATS = ["float32", "bfloat16"]
BITS = {"w8a16": "int8", "w8a8_dynamic": "int8", "w4a16": "int4"}  # what peers call the weights
BATCHES = [1, 2, 4, 8]
LAYERS = [10, 20, 30]
# Relative root mean square of the difference of logits. float32: different order of summation.
# bfloat16: engines round activations to 2^-9 at different points in each layer.
# Quantised: every tool rounds weights its own way, and logits differ by what the rounding costs,
# 0.12 for int4 groups of 32 and 64 of SmolLM2.
TOLERANCES = {
    "float32": 1e-3, "bfloat16": 6e-2, "w8a16": 0.1, "w8a8_dynamic": 0.15, "w4a16": 0.3,
}  # fmt: skip
COMPARED_PROMPT, COMPARED_STEPS = 128, 3
SAME_FILE = "same file on CPU"  # our model.onnx with its function bodies
NO_BFLOAT16 = "onnxruntime's CPUExecutionProvider has no bfloat16 MatMul"
NO_INTEGERS = "transformers' eager model has no integer weights"
MODELS = {**models.MODELS, **models.ROUTED}


class Lineup:
    """The engines for a model and dtype, and the reasons for missing ones."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.peers = Peers(harness.FOLDER, arguments.peers)
        for name in arguments.peers:
            if reason := self.peers.unavailable.get(name):
                print(f"without {name}: {reason}", file=sys.stderr, flush=True)
        self.missing: dict[str, dict[str, str]] = {}

    def specs(self, model: models.Model, dtype: str, names: list[str]) -> dict[str, harness.Spec]:
        """Ours and the available ones of the named peers."""
        directory = str(models.exported(model, dtype, self.arguments.out))
        make = functools.partial(llm_engines.NpuModel, directory)
        ours = functools.partial(make, self.arguments.threads, models.CAPACITY)
        found = {"npu": harness.Spec(ours, ours=True)}
        missing = self.missing.setdefault(dtype, {})
        for name in names:
            if name == SAME_FILE:
                if dtype == "float32":
                    bodies = self._ort(directory, model)
                    found[name] = harness.Spec(bodies, python=self.peers.python)
                continue
            reason = self.peers.unavailable.get(name)
            if not reason and dtype == "bfloat16" and name in ("onnxruntime", "genai"):
                reason = NO_BFLOAT16
            if not reason and dtype in BITS and name == "torch":
                reason = NO_INTEGERS
            if reason:
                missing[name] = reason
                continue
            try:
                make = self._peer(name, model, BITS.get(dtype, dtype))
            except RuntimeError as error:
                missing[name] = str(error).strip().splitlines()[-1]
                continue
            found[name] = harness.Spec(make, python=self.peers.python)
        return found

    def _ort(self, directory: str, model: models.Model) -> Any:
        checkpoint = str(models.checkpoint(model, self.arguments.out))
        make = functools.partial(llm_engines.OrtModel, directory, checkpoint)
        return functools.partial(make, self.arguments.threads, models.CAPACITY)

    def _peer(self, name: str, model: models.Model, dtype: str) -> Any:
        threads = self.arguments.threads

        def converted(kind: str, kind_dtype: str = dtype) -> str:
            return str(models.converted(kind, model, kind_dtype, self.arguments.out, self.peers))

        if name == "torch":
            source = str(models.checkpoint(model, self.arguments.out))
            return functools.partial(llm_engines.TorchModel, source, dtype, threads)
        if name == "onnxruntime":
            return self._ort(converted("onnxruntime"), model)
        if name == "genai":
            directory = converted("onnxruntime")
            return functools.partial(llm_engines.GenaiModel, directory, threads, models.CAPACITY)
        if name == "openvino":
            # Floats are compiled to the requested dtype.
            directory = converted("openvino", dtype if dtype in BITS.values() else "float32")
            return functools.partial(llm_engines.OpenVinoModel, directory, dtype, threads)
        make = functools.partial(llm_engines.LlamaCppModel, converted("gguf"), dtype, threads)
        return functools.partial(make, models.CAPACITY)


def cases_of(label: str, arguments: argparse.Namespace) -> list[harness.Case]:
    """Prefill and decode of one row at every length."""
    steps = arguments.steps
    return [
        *(
            harness.Case(f"{label} prefill {n}", n, "tokens", "prefill", (n,))
            for n in arguments.prefill
        ),
        *(
            harness.Case(f"{label} decode @{n}", steps, "tokens", "decode", (n, steps))
            for n in arguments.decode
        ),
    ]


def batches_of(label: str, arguments: argparse.Namespace) -> list[harness.Case]:
    """A decode step of several rows."""
    past, steps = min(report.LENGTHS), arguments.steps
    return [
        harness.Case(
            f"{label} decode @{past} batch {rows}",
            rows * steps,
            "tokens",
            "decode",
            (past, steps, rows),
        )
        for rows in arguments.batches
    ]


def any_selected(cases: list[harness.Case], arguments: argparse.Namespace) -> bool:
    """Whether --only selects any: models are created only for those."""
    return any(re.search(arguments.only, case.name) for case in cases)


def run(lineup: Lineup, arguments: argparse.Namespace) -> None:
    """Measure what the arguments ask for."""

    def measure(
        kind: str, model: models.Model, cases: list[harness.Case], peers: list[str]
    ) -> None:
        if any_selected(cases, arguments):
            specs = lineup.specs(model, dtype, peers)
            name = f"{kind}-{model.label}-{dtype}"
            check = functools.partial(
                harness.compare,
                method="logits",
                calls=[(COMPARED_PROMPT, COMPARED_STEPS)],
                tolerance=TOLERANCES[dtype],
            )
            harness.measure(arguments, name, specs, cases, check, lineup.missing[dtype])

    for dtype in arguments.dtypes:
        for name in arguments.models:
            model, peers = MODELS[name], arguments.peers
            if name in models.ROUTED:
                # No peer has integers for these. With random weights, groups of DeepSeek's experts
                # tie within the rounding of bfloat16: in a third of the steps torch's own logits
                # differ from its float32 ones by 0.1 to 0.4, so that there is nothing to compare.
                if dtype in BITS or (dtype == "bfloat16" and model == models.DEEPSEEK):
                    continue
                peers = [peer for peer in ("torch",) if peer in peers]
            label = f"{model.label} {dtype}"
            measure("llm", model, cases_of(label, arguments), peers)
        if models.SMOLLM2.name not in arguments.models or dtype in BITS:
            continue
        batch_peers = [peer for peer in ("torch", "onnxruntime") if peer in arguments.peers]
        label = f"{models.SMOLLM2.label} {dtype}"
        measure("batch", models.SMOLLM2, batches_of(label, arguments), batch_peers)
        for count in arguments.layers:
            cut = models.Model(models.SMOLLM2.name, count)
            label, past, steps = f"{cut.label} {dtype}", min(report.LENGTHS), arguments.steps
            case = harness.Case(f"{label} decode @{past}", steps, "steps", "decode", (past, steps))
            measure("layers", cut, [case], [peer for peer in ("torch",) if peer in arguments.peers])


def main() -> int:
    parser = harness.arguments_parser(__doc__ or "", [*FLOATS, *BITS], rounds=5)
    names, peers = list(MODELS), [*PEERS, SAME_FILE]
    parser.add_argument("--models", nargs="+", default=names, choices=names, help="to run")
    parser.add_argument("--peers", nargs="*", default=peers, choices=peers, help="too")
    parser.add_argument("--prefill", type=int, nargs="*", default=report.LENGTHS, help="tokens")
    parser.add_argument(
        "--decode", type=int, nargs="*", default=report.LENGTHS, help="tokens cached"
    )
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES, help="rows a step")
    parser.add_argument("--layers", type=int, nargs="*", default=LAYERS, help="of SmolLM2")
    parser.add_argument("--steps", type=int, default=16, help="tokens a decode sample")
    parser.add_argument(
        "--report-only", action="store_true", help="tables and plots of what was measured before"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write this machine's report and docs/performance.md from all results",
    )
    arguments = harness.parse_arguments(parser)
    longest = max([*arguments.prefill, *(n + arguments.steps for n in arguments.decode)], default=0)
    if longest > models.CAPACITY:
        parser.error(f"lengths and steps fit in {models.CAPACITY} tokens, got {longest}")
    plots.require()
    reasons = arguments.out / "missing-llm.json"
    if not arguments.report_only:
        lineup = Lineup(arguments)
        run(lineup, arguments)
        known = json.loads(reasons.read_text()) if reasons.exists() else {}
        for dtype, missing in lineup.missing.items():
            known[dtype] = {**known.get(dtype, {}), **missing}
        reasons.write_text(json.dumps(known, indent=1) + "\n")
    missing = json.loads(reasons.read_text()) if reasons.exists() else {}
    text = report.text(arguments.out, missing)
    (arguments.out / "llm.md").write_text(text)
    plots.write(arguments.out)
    print(text)
    print(f"tables, samples and plots: {arguments.out}")
    if arguments.write_docs:
        summary.write(arguments.out, text, ratios.path_for(results.machine()).stem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
