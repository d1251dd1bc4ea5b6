#!/usr/bin/env python3
"""onnxruntime-genai on our exports of SmolLM2-135M, against an IOBinding loop over the same files.

Its engine decodes several sequences over a paged cache, its generator one over a growing cache.
Both keep caches in host memory. "genai" is the exported directory as it is, where kernels work on
that memory in place (provider option host_memory); "copies" is the same without the option, so that
onnxruntime copies the caches to the NPU and back; "bound" keeps them on the NPU, as CausalLM does.
All three must choose the same tokens before anything is timed.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import models
import numpy as np
from llm_engines import prompt, session_options

SEQUENCES = [1, 4, 16]
CACHED = [128, 1500]
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "processor": time.process_time,  # of all threads: for a machine that does other work
}


class Loops:
    """`_serve` and `_generate` return the tokens that they chose and the seconds of their steps."""

    def tokens(self, loop: str, *arguments: int) -> np.ndarray:
        """The tokens that a loop has chosen."""
        return getattr(self, f"_{loop}")(*arguments)[0]

    def time(self, loop: str, *arguments: int) -> float:
        """Seconds of the steps of a loop."""
        return getattr(self, f"_{loop}")(*arguments)[1]


class GenaiLoops(Loops):
    """onnxruntime-genai's engine and generator on NPUExecutionProvider."""

    def __init__(
        self, paged: str, growing: str, threads: int, clock: str, settings: dict[str, str]
    ) -> None:
        import onnxruntime_genai as genai
        import onnxruntime_npu

        genai.disable_telemetry_events()
        name = onnxruntime_npu.get_ep_name()
        genai.register_execution_provider_library(name, onnxruntime_npu.get_library_path())
        self.genai, self.clock = genai, CLOCKS[clock]

        self.vocabulary = _vocabulary(paged)
        options = {"session_options": {"intra_op_num_threads": threads}}
        # A token that greedy choice does not reach: no sequence ends before the others.
        changes = {"model": {"decoder": options, "eos_token_id": self.vocabulary - 1}}

        def model(directory: str) -> Any:
            config = genai.Config(directory)
            config.overlay(json.dumps(changes))
            config.clear_providers()
            config.append_provider(name)
            for key, value in settings.items():
                config.set_provider_option(name, key, value)
            return genai.Model(config)

        self.engine = genai.Engine(model(paged))
        self.growing = model(growing)

    def _serve(self, sequences: int, past: int, steps: int) -> tuple[np.ndarray, float]:
        """Return the tokens of each sequence and the seconds of its last `steps`."""
        requests = []
        for ids in _prompts(sequences, past, self.vocabulary):
            request = self.engine.create_request()
            turn = self.genai.TurnOptions(request)
            turn.set_do_sample(False)
            # Some sequences decode while the prompts of others are read.
            turn.set_max_generated_tokens(steps + sequences + 1)
            request.begin_turn(ids.astype(np.int32), turn)
            requests.append(request)
        tokens: list[list[int]] = [[] for _ in requests]
        events, seconds, timed = self.engine.create_event_buffer(64), 0.0, 0
        while timed < steps:
            decodes = all(tokens)  # prompts are in the cache
            start = self.clock()
            happened = self.engine.run(events)
            if decodes:
                seconds, timed = seconds + self.clock() - start, timed + 1
            for event in happened:
                if event.flags & self.genai.EngineEventFlags.TOKEN:
                    row = next(i for i, r in enumerate(requests) if r == event.request)
                    tokens[row].append(event.token)
        for request in requests:
            request.close()
        return np.array([row[-steps:] for row in tokens], np.float32), seconds

    def _generate(self, past: int, steps: int) -> tuple[np.ndarray, float]:
        parameters = self.genai.GeneratorParams(self.growing)
        parameters.set_search_options(do_sample=False, max_length=past + steps + 1)
        generator = self.genai.Generator(self.growing, parameters)
        generator.append_tokens(prompt(past, self.vocabulary).astype(np.int32))
        generator.generate_next_token()
        start = self.clock()
        for _ in range(steps):
            generator.generate_next_token()
        seconds = self.clock() - start
        return np.array(generator.get_sequence(0)[past + 1 :], np.float32), seconds


class BoundLoops(Loops):
    """The same files with caches on the NPU, bound to inputs and outputs."""

    def __init__(self, paged: str, growing: str, threads: int, clock: str) -> None:
        from onnxruntime_npu.generation.decoding import StepModel

        self.models = [
            StepModel(
                str(Path(directory) / "model.onnx"),
                session_options(threads),
                ["NPUExecutionProvider"],
                static=False,
            )
            for directory in (paged, growing)
        ]
        self.vocabulary, self.clock = _vocabulary(paged), CLOCKS[clock]

    def _decode(self, model: Any, rows: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
        from onnxruntime_npu.session.ortvalue import ortvalue_to_numpy

        def chosen(logits: Any) -> np.ndarray:
            return ortvalue_to_numpy(logits)[:, -1].argmax(-1).astype(np.int64)

        stepper = model.stepper(rows.tolist(), rows.shape[1] + steps + 1)
        tokens = [chosen(stepper.prefill())]
        start = self.clock()
        for _ in range(steps):
            tokens.append(chosen(stepper.decode(tokens[-1])))
        seconds = self.clock() - start
        stepper.close()
        return np.stack(tokens[1:], 1).astype(np.float32), seconds

    def _serve(self, sequences: int, past: int, steps: int) -> tuple[np.ndarray, float]:
        return self._decode(self.models[0], _prompts(sequences, past, self.vocabulary), steps)

    def _generate(self, past: int, steps: int) -> tuple[np.ndarray, float]:
        tokens, seconds = self._decode(self.models[1], prompt(past, self.vocabulary), steps)
        return tokens[0], seconds


def _prompts(sequences: int, past: int, vocabulary: int) -> np.ndarray:
    """Different prompts, [sequences, past] int64."""
    return np.random.default_rng(1).integers(5, vocabulary, (sequences, past), dtype=np.int64)


def _vocabulary(directory: str) -> int:
    return int(json.loads((Path(directory) / "config.json").read_text())["vocab_size"])


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32", "bfloat16"], rounds=5)
    parser.add_argument("--sequences", type=int, nargs="*", default=SEQUENCES, help="in the engine")
    parser.add_argument("--cached", type=int, nargs="*", default=CACHED, help="by the generator")
    parser.add_argument("--steps", type=int, default=16, help="of a sample")
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help="that is read")
    arguments = harness.parse_arguments(parser)
    steps, past = arguments.steps, min(CACHED)
    for dtype in arguments.dtypes:
        paged, growing = (
            str(models.exported(models.SMOLLM2, dtype, arguments.out, cache))
            for cache in ("paged", "dynamic")
        )
        given = (paged, growing, arguments.threads, arguments.clock)
        specs = {
            "genai": harness.Spec(functools.partial(GenaiLoops, *given, {}), ours=True),
            "copies": harness.Spec(functools.partial(GenaiLoops, *given, {"host_memory": "0"})),
            "bound": harness.Spec(functools.partial(BoundLoops, *given)),
        }
        cases = [
            harness.Case(f"{dtype} engine, {n} sequences", n * steps, "tokens", "time",
                         ("serve", n, past, steps))
            for n in arguments.sequences
        ] + [
            harness.Case(f"{dtype} generator @{n}", steps, "tokens", "time", ("generate", n, steps))
            for n in arguments.cached
        ]  # fmt: skip
        compared = [("serve", 3, 20, 4), ("generate", 20, 4)]
        harness.measure(
            arguments,
            f"genai-{dtype}",
            specs,
            cases,
            functools.partial(harness.compare, method="tokens", calls=compared, tolerance=0),
        )


if __name__ == "__main__":
    main()
