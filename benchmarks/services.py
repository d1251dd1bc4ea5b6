#!/usr/bin/env python3
"""Services of language models under load, beside their peers on this machine, in one run.

SmolLM2-135M with its real weights and a model of Qwen2.5-0.5B's shape with random ones. Clients
send requests one after the other; at 1, 4, 16 and 64 clients the table has the throughput in new
tokens a second, the time to the first token and between two tokens, median and 99th percentile.
Prompts are the same tokens for all, and others in each round, since our engine keeps beginnings of
prompts; answers are greedy and at most of one length. The table has the mean number of tokens of an
answer, since a model may end its answer. Tables of earlier runs are kept until they are measured
again.

Our server and llama.cpp's are asked over HTTP. Engines without a server are driven in a process of
their own: ours, so that the difference is the server's own cost, onnxruntime-genai's on the
CPU with its builder's model, and openvino-genai's continuous batching. bfloat16 is the precision
of our weights and activations, and llama.cpp's; onnxruntime's CPUExecutionProvider has no such
MatMul, so genai's is float32, and openvino-genai reads no files of bfloat16: its has float16. int4
is our w4a16, and what each peer's own tool makes of the checkpoint.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
import llama_server
import models
import numpy as np
import services_report
import serving_engines
from peers import Peers
from services_report import ENGINE, SERVER, Table

DTYPES = {"bfloat16": "bfloat16", "int4": "w4a16"}  # ours by what peers call it
CLIENTS = [1, 4, 16, 64]
PEERS = ["genai", "openvino-genai", "llama.cpp server"]
# What --short changes: enough to see that every service starts and answers.
SHORT = {"clients": [1, 4], "requests": 4, "prompt": 16, "tokens": 4, "rounds": 1}


class Lineup:
    """The services of a model and dtype, and the reasons for missing ones."""

    def __init__(
        self, model: models.Model, dtype: str, arguments: argparse.Namespace, peers: Peers
    ) -> None:
        self._model, self._dtype, self._arguments, self._peers = model, dtype, arguments, peers
        self.engines: dict[str, harness.Engine] = {}
        self.missing: dict[str, str] = {}
        checkpoint = models.checkpoint(model, arguments.out)
        self._vocabulary = json.loads((checkpoint / "config.json").read_text())["vocab_size"]

    def start(self) -> None:
        """Make the models and start the services; a peer's failure does not affect the others."""
        directory = models.exported(self._model, DTYPES[self._dtype], self._out, "paged")
        _make_room(directory / "genai_config.json")
        for name, service in ((SERVER, serving_engines.npu), (ENGINE, serving_engines.NpuEngine)):
            make = functools.partial(service, str(directory), self._vocabulary)
            self.engines[name] = harness.Engine(name, make)
        for name in self._arguments.peers:
            try:
                if reason := self._peers.unavailable.get(name):
                    raise RuntimeError(reason)
                self.engines[name] = harness.Engine(name, self._peer(name), self._peers.python)
            except RuntimeError as error:  # of a conversion, of an engine's process
                self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        """Go on without a peer."""
        self.missing[name] = str(error).strip().splitlines()[-1]
        print(f"without {name}: {self.missing[name]}", file=sys.stderr, flush=True)
        if (engine := self.engines.pop(name, None)) is not None:
            engine.close()

    def close(self) -> None:
        """End all processes."""
        for engine in self.engines.values():
            engine.close()

    @property
    def _out(self) -> Path:
        return self._arguments.out

    def _peer(self, name: str) -> Callable[[], Any]:
        options = self._arguments.threads, self._vocabulary
        if name == "genai":
            place = self._converted("genai_engine", "float32")
            return functools.partial(serving_engines.GenaiEngine, place, *options)
        if name == "openvino-genai":
            place = self._converted("gguf", "float16") + "/model.gguf"
            return functools.partial(serving_engines.OpenVinoGenai, place, *options)
        program = llama_server.built(self._out, self._peers)
        place = self._converted("gguf", "bfloat16") + "/model.gguf"
        return functools.partial(serving_engines.llama_cpp, program, place, *options)

    def _converted(self, kind: str, floats: str) -> str:
        dtype = self._dtype if self._dtype == "int4" else floats
        return str(models.converted(kind, self._model, dtype, self._out, self._peers))


def _make_room(settings: Path) -> None:
    """Let the engine's cache take a whole batch of the longest requests, as peers' caches do."""
    content = json.loads(settings.read_text())
    batching = content["engine"]["dynamic_batching"]
    batching["num_blocks"] = (
        serving_engines.BATCH * serving_engines.LONGEST // batching["block_size"]
    )
    settings.write_text(json.dumps(content))


def columns(answers: list[serving_engines.Answer]) -> list[float]:
    """Return the columns of one load: tokens a second, seconds, tokens."""
    begun = min(sent for sent, _ in answers)
    ended = max(times[-1] for _, times in answers)
    firsts = [times[0] - sent for sent, times in answers]
    gaps = [gap for _, times in answers for gap in np.diff(times).tolist()]
    tokens = sum(len(times) for _, times in answers)
    return [
        tokens / (ended - begun),
        *(float(np.percentile(firsts, q)) for q in (50, 99)),
        *(float(np.percentile(gaps, q)) for q in (50, 99)),
        tokens / len(answers),
    ]


def measure(
    lineup: Lineup, table: Table, arguments: argparse.Namespace, save: Callable[[], None]
) -> None:
    """Run every load on every service, round by round, after a short one that warms up."""
    deadline = time.monotonic() + arguments.seconds
    for number in range(arguments.rounds + 1):
        for clients in arguments.clients:
            for name in list(lineup.engines):
                if time.monotonic() > deadline and number > 1:
                    return
                each = max(1, arguments.requests // clients)
                tokens = arguments.tokens if number else 2
                load = (clients, each, arguments.prompt, tokens, [number, clients])
                try:
                    answers = lineup.engines[name].call("answer", *load)
                except harness.EngineFailed as error:
                    if name in (SERVER, ENGINE):
                        raise
                    lineup.drop(name, error)
                    continue
                speed, *_ = measured = columns(answers)
                print(
                    f"{table.title}: round {number} of {arguments.rounds}, "
                    f"{clients} clients: {name} {speed:.4g} tokens/s",
                    file=sys.stderr,
                    flush=True,
                )
                if number:
                    table.add(clients, name, measured)
                    save()


def main() -> int:
    """Measure the chosen models and dtypes, write the tables."""
    parser = harness.arguments_parser(__doc__ or "", list(DTYPES), rounds=3)
    names = list(models.MODELS)
    parser.add_argument("--models", nargs="+", default=names, choices=names, help="to run")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, help="too")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="at once")
    parser.add_argument("--requests", type=int, default=8, help="of a load; at least one a client")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each answer, 2 or more")
    parser.add_argument(
        "--seconds", type=float, default=600, help="of a table; further rounds are left out"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="this machine's in docs/performance_serving.md"
    )
    parser.add_argument("--note", default="", help="on the machine, for --write-docs")
    parser.add_argument("--short", action="store_true", help="small loads: does everything run?")
    arguments = harness.parse_arguments(parser)
    if arguments.short:
        vars(arguments).update(SHORT)
    longest = arguments.prompt + arguments.tokens
    if arguments.prompt < 1 or arguments.tokens < 2 or longest > serving_engines.LONGEST:
        parser.error(
            "expected a prompt of 1 or more tokens, 2 or more new ones, "
            f"and at most {serving_engines.LONGEST} together"
        )
    peers = Peers(harness.FOLDER, arguments.peers)
    stored = arguments.out / "services.json"
    tables = {
        table.title: table
        for table in map(Table.of, json.loads(stored.read_text()) if stored.exists() else [])
    }

    def save() -> None:
        stored.write_text(json.dumps([asdict(table) for table in tables.values()]) + "\n")

    for name in arguments.models:
        for dtype in arguments.dtypes:
            lineup = Lineup(models.MODELS[name], dtype, arguments, peers)
            title = f"{name}, {dtype}"
            try:
                lineup.start()
                tables[title] = Table(title, missing=lineup.missing)
                measure(lineup, tables[title], arguments, save)
            finally:
                lineup.close()
            print(tables[title].markdown(), flush=True)
    print(services_report.summary(tables.values()))
    if arguments.write_docs:
        services_report.write_docs(list(tables.values()), arguments.note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
