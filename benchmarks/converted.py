#!/usr/bin/env python3
"""Files of other exporters before and after `onnxruntime-npu convert`, interleaved in one run.

SmolLM2-135M with its real weights, as onnxruntime-genai's builder writes it (int4 and float32) and
as transformers' own exporter does. The source runs on the CPUExecutionProvider and, with what it
can place there, on the NPUExecutionProvider; the converted file on the NPUExecutionProvider. A peer
is OpenVINO, where it can read the source. All take the cache of a step as input and return the
grown one, which stays on the device, and the logits of every token. The logits are compared before
anything is timed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import llm_engines
import models
import numpy as np
from peers import Peers

PROMPT, STEPS = 128, 16
CACHE = (3, 0, 64)  # heads, tokens and the size of a head of SmolLM2's empty cache
PEER = "openvino"
BUILDER = "onnxruntime-genai's builder"
# Relative norm of the difference of logits. float32: sums in another order. int4: both files round
# blocks of activations to int8, and the converted one rounds activations and scales to bfloat16.
FILES = {
    f"{BUILDER}, int4": ("int4", 1e-1),
    f"{BUILDER}, float32": ("fp32", 1e-3),
    "transformers' exporter, float32": ("transformers", 1e-3),
}


class FileModel(llm_engines.LanguageModel):
    """A decoder's file whose cache grows, on one provider."""

    def __init__(self, path: str, provider: str, threads: int) -> None:
        super().__init__()
        import onnxruntime as ort

        if provider.startswith("NPU"):
            import onnxruntime_npu

            self.upload, self.device = onnxruntime_npu.ortvalue_from_numpy, "npu"
        else:
            self.upload, self.device = ort.OrtValue.ortvalue_from_numpy, "cpu"
        options = llm_engines.session_options(threads)
        self.session = ort.InferenceSession(path, options, providers=[provider])
        self.names = [value.name for value in self.session.get_inputs()]
        self.caches = [v for v in self.session.get_inputs() if "past" in v.name]
        outputs = self.session.get_outputs()
        self.vocabulary = outputs[0].shape[-1]
        self.outputs = [value.name for value in outputs]

    def reset(self, rows: int) -> None:
        empty = np.zeros((rows, *CACHE), np.float32)
        self.past = [self.upload(empty) for _ in self.caches]
        self.kept: dict[int, list[Any]] = {}

    def rewind(self, past: int) -> None:
        self.past = self.kept[past]

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        self.kept[past] = self.past
        binding = self.session.io_binding()
        for name, array in llm_engines.inputs_of_step(ids, past, self.names).items():
            binding.bind_cpu_input(name, array)
        for cache, value in zip(self.caches, self.past, strict=True):
            binding.bind_ortvalue_input(cache.name, value)
        binding.bind_output(self.outputs[0], "cpu")
        for name in self.outputs[1:]:
            binding.bind_output(name, self.device)
        self.session.run_with_iobinding(binding)
        logits, *self.past = binding.get_outputs()
        return logits.numpy()[:, -1]


def source(kind: str, out: Path) -> Path:
    """The folder of the other exporter's model.onnx."""
    checkpoint = models.checkpoint(models.SMOLLM2, out)
    packages = ("onnxruntime-genai", "transformers", "torch", "onnx-ir")
    versions = {name: importlib.metadata.version(name) for name in packages}
    key = models.digest(checkpoint.name, versions, inspect.getsource(source))

    def make(folder: Path) -> None:
        if kind != "transformers":
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
            options = ["-p", kind, "-e", "cpu", "-c", str(folder / "cache")]
            command = [*builder, "-i", str(checkpoint), "-o", str(folder), *options]
            subprocess.run(command, check=True, capture_output=True)
            return
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        ids = torch.from_numpy(llm_engines.prompt(4, model.config.vocab_size, 2))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        exported = OnnxExporter().export_for_generation(
            model,
            inputs,
            OnnxConfig(dynamic=True),
            generation_config=GenerationConfig(),
            multi_token_decode=True,
        )
        exported.save_pretrained(folder)
        (folder / "decode.onnx").rename(folder / "model.onnx")

    return models.kept(out, f"{models.SMOLLM2.label}-source-{kind}", key, make)


def converted(kind: str, file: Path, out: Path) -> Path:
    """The folder of the converted model.onnx."""
    package = harness.ROOT / "python" / "onnxruntime_npu"
    parts = [harness.ROOT / "converters", harness.ROOT / "contrib_ops", package / "opdef"]
    key = models.digest(
        file.parent.name, files=[path for folder in parts for path in folder.rglob("*.py")]
    )

    def make(folder: Path) -> None:
        from onnxruntime_npu.converters import convert

        start = time.perf_counter()
        report = convert(file, folder / "model.onnx")
        seconds = time.perf_counter() - start
        print(f"{kind}: {seconds:.1f} s, converted {report.converted}, left {report.left}")

    return models.kept(out, f"{models.SMOLLM2.label}-converted-{kind}", key, make)


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=9)
    parser.add_argument("--files", nargs="+", default=list(FILES), choices=list(FILES), help="of")
    parser.add_argument("--peers", nargs="*", default=[PEER], choices=[PEER], help="too")
    arguments = harness.parse_arguments(parser)
    peers = Peers(harness.FOLDER, arguments.peers)
    for title in arguments.files:
        kind, tolerance = FILES[title]
        before = source(kind, arguments.out) / "model.onnx"
        after = converted(kind, before, arguments.out) / "model.onnx"
        make = functools.partial(FileModel, threads=arguments.threads)
        lineup = {
            "converted": (after, "NPUExecutionProvider"),
            "source on CPU": (before, "CPUExecutionProvider"),
            "source on NPU": (before, "NPUExecutionProvider"),
        }
        specs = {
            name: harness.Spec(functools.partial(make, str(path), provider), ours=path is after)
            for name, (path, provider) in lineup.items()
        }
        missing = {name: why for name in arguments.peers if (why := peers.unavailable.get(name))}
        for name in set(arguments.peers) - set(missing):
            read = functools.partial(llm_engines.OpenVinoFile, str(before), CACHE)
            specs[name] = harness.Spec(
                functools.partial(read, arguments.threads), python=peers.python
            )
        cases = [
            harness.Case(f"{title} prefill {PROMPT}", PROMPT, "tokens", "prefill", (PROMPT,)),
            harness.Case(f"{title} decode @{PROMPT}", STEPS, "tokens", "decode", (PROMPT, STEPS)),
        ]
        check = functools.partial(
            harness.compare, method="logits", calls=[(PROMPT, 3)], tolerance=tolerance
        )
        harness.measure(arguments, f"converted-{kind}", specs, cases, check, missing)
        for name, why in missing.items():
            print(f"{title}: without {name}: {why}", flush=True)


if __name__ == "__main__":
    main()
