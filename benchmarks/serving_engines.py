"""The services that the serving benchmark compares: each answers clients, notes when tokens come.

``answer`` has every client send its requests one after the other, as soon as the one before has
ended, and returns for each request the second in which it was sent and those of its new tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from engine_server import end_with_parent

START_SECONDS = 300.0
BATCH = 64
LONGEST = 512  # tokens of a request

# Sent at, and when each token came; a token that has no event of its own came with the one before.
Answer = tuple[float, list[float]]


def prompts(count: int, length: int, vocabulary: int, seed: list[int]) -> list[list[int]]:
    """Pseudo-random prompts, for a seed the same for every service, without special tokens."""
    rows = np.random.default_rng(seed).integers(256, vocabulary, (count, length))
    return rows.tolist()


def _end_of(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name} while it started"
    return f"ended with code {code} while it started"


class Server:
    """A process with OpenAI's /v1/completions."""

    def __init__(self, command: list[str], ready: str, vocabulary: int, **options: Any) -> None:
        """Start it; ``ready`` is a path that answers 200 once requests are served.

        ``options`` are added to each request.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._vocabulary, self._options = vocabulary, options
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(ready):
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self._process.kill()
                how = f"did not start in {START_SECONDS} s" if ended is None else _end_of(ended)
                raise RuntimeError(f"{' '.join(Path(part).name for part in command[:3])} … {how}")
            time.sleep(0.5)

    def answer(
        self, clients: int, each: int, length: int, count: int, seed: list[int]
    ) -> list[Answer]:
        """Return the answers, of at most ``count`` tokens, to a seed's prompts of ``length``."""
        rows = prompts(clients * each, length, self._vocabulary, seed)
        return asyncio.run(self._all(clients, rows, count))

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self._port}{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == 200
        return False

    async def _all(self, clients: int, rows: list[list[int]], count: int) -> list[Answer]:
        async def client(number: int) -> list[Answer]:
            return [await self._one(row, count) for row in rows[number::clients]]

        found = await asyncio.gather(*(client(number) for number in range(clients)))
        return [answer for of_client in found for answer in of_client]

    async def _one(self, prompt: list[int], count: int) -> Answer:
        """Send one request over a connection of its own, with as little work as possible."""
        body = json.dumps(
            {
                **{"prompt": prompt, "max_tokens": count, "temperature": 0},
                **{"stream": True, "stream_options": {"include_usage": True}},
                **self._options,
            }
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        sent, times, tokens = time.monotonic(), [], 0
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"expected status 200, got {status!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event.get("choices") and event["choices"][0]["text"]:
                    times.append(time.monotonic())
                if usage := event.get("usage"):
                    tokens = usage["completion_tokens"]
        writer.close()
        # Tokens that make no whole character have no event: they came with one that has.
        return sent, [*times, *times[-1:] * (tokens - len(times))]


def npu(directory: str, vocabulary: int) -> Server:
    """Return our service."""
    command = [sys.executable, "-m", "onnxruntime_npu.cli", "serve", directory]
    return Server(command, "/ready", vocabulary)


def llama_cpp(program: str, model: str, threads: int, vocabulary: int) -> Server:
    """Return llama.cpp's server, whose cache has room for a whole batch."""
    options = {
        "--model": model,
        "--ctx-size": BATCH * LONGEST,
        "--parallel": BATCH,
        "--threads": threads,
        "--threads-batch": threads,
        "--cache-ram": 0,
    }
    command = [program, *(str(each) for pair in options.items() for each in pair)]
    return Server(command, "/health", vocabulary, cache_prompt=False)


class Loop(ABC):
    """An engine with continuous batching in this process, driven without a server."""

    vocabulary: int

    @abstractmethod
    def begin(self, key: int, prompt: list[int], count: int) -> None:
        """Hand over a request."""

    @abstractmethod
    def step(self) -> tuple[list[int], list[int]]:
        """Run once; return requests that have got a token, once for each, and those that ended."""

    def answer(
        self, clients: int, each: int, length: int, count: int, seed: list[int]
    ) -> list[Answer]:
        """Return the answers, of at most ``count`` tokens, to a seed's prompts of ``length``."""
        rows = prompts(clients * each, length, self.vocabulary, seed)
        of_clients = [list(range(number, len(rows), clients)) for number in range(clients)]
        sent: dict[int, float] = {}
        times: dict[int, list[float]] = {}

        def send(client: int) -> None:
            if of_clients[client]:
                key = of_clients[client].pop(0)
                sent[key], times[key] = time.monotonic(), []
                self.begin(key, rows[key], count)

        for client in range(clients):
            send(client)
        running = len(sent)
        while running:
            tokens, ended = self.step()
            now = time.monotonic()
            for key in tokens:
                times[key].append(now)
            for key in ended:
                before = len(sent)
                send(key % clients)
                running += len(sent) - before - 1
        return [(sent[key], times[key]) for key in sorted(sent)]


class NpuEngine(Loop):
    """The engine of our service without the server: what the server costs is the difference."""

    def __init__(self, directory: str, vocabulary: int) -> None:
        import onnxruntime_genai as genai
        from onnxruntime_npu.serving.batch import Batch
        from onnxruntime_npu.serving.engine_messages import Sampling, Submit
        from onnxruntime_npu.serving.engine_process import open_model
        from onnxruntime_npu.session.provider_library import get_ep_name, get_library_path

        genai.register_execution_provider_library(get_ep_name(), get_library_path())
        self._sampling, self._submit, self.vocabulary = Sampling, Submit, vocabulary
        settings = json.loads((Path(directory) / "genai_config.json").read_text())
        engine = genai.Engine(open_model(Path(directory), get_ep_name()))
        self._batch = Batch(engine, settings["engine"]["dynamic_batching"]["block_size"])

    def begin(self, key: int, prompt: list[int], count: int) -> None:
        """Hand over a request."""
        sampling = self._sampling(max_tokens=count, greedy=True)
        self._batch.add(self._submit(key, prompt, sampling))

    def step(self) -> tuple[list[int], list[int]]:
        """Run once; return requests that have got a token, once for each, and those that ended."""
        step = self._batch.step()
        if failed := [message for _, reason, message in step.finished if reason == "error"]:
            raise RuntimeError(f"the engine failed: {failed[0]}")
        return [key for key, _, _ in step.tokens], [key for key, _, _ in step.finished]


class GenaiEngine(Loop):
    """onnxruntime-genai's engine on the CPU, with the model of its own builder."""

    def __init__(self, directory: str, threads: int, vocabulary: int) -> None:
        import onnxruntime_genai as genai

        genai.disable_telemetry_events()
        self._genai, self.vocabulary = genai, vocabulary
        config = genai.Config(directory)
        decoder = {"session_options": {"intra_op_num_threads": threads}}
        # The builder writes no paged cache for the CPU: a batch is formed anew when one has ended.
        engine = {"static_batching": {"max_batch_size": BATCH}}
        config.overlay(json.dumps({"model": {"decoder": decoder}, "engine": engine}))
        config.clear_providers()
        self._engine = genai.Engine(genai.Model(config))
        self._events = self._engine.create_event_buffer(BATCH + 1)
        self._keys: dict[Any, int] = {}

    def begin(self, key: int, prompt: list[int], count: int) -> None:
        """Hand over a request."""
        request = self._engine.create_request()
        turn = self._genai.TurnOptions(request)
        turn.set_max_generated_tokens(count)
        turn.set_do_sample(False)
        request.begin_turn(np.array(prompt, np.int32), turn)
        self._keys[request] = key

    def step(self) -> tuple[list[int], list[int]]:
        """Run once; return requests that have got a token, once for each, and those that ended."""
        flags = self._genai.EngineEventFlags
        tokens, ended = [], []
        for event in self._engine.run(self._events):
            if event.flags & flags.FAILED:
                raise RuntimeError(f"the engine failed: {event.error_code.name}")
            if event.flags & flags.TOKEN:
                tokens.append(self._keys[event.request])
            if event.flags & flags.TURN_FINISHED:
                event.request.close()
                ended.append(self._keys.pop(event.request))
        return tokens, ended


class OpenVinoGenai(Loop):
    """openvino-genai's continuous batching, which reads llama.cpp's files."""

    def __init__(self, model: str, threads: int, vocabulary: int) -> None:
        import openvino
        import openvino_genai

        self._openvino, self._genai, self.vocabulary = openvino, openvino_genai, vocabulary
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_seqs = BATCH
        scheduler.enable_prefix_caching = False
        options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._running: dict[int, Any] = {}

    def begin(self, key: int, prompt: list[int], count: int) -> None:
        """Hand over a request."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = count
        ids = self._openvino.Tensor(np.array([prompt], np.int64))
        self._running[key] = self._pipeline.add_request(key, ids, config)

    def step(self) -> tuple[list[int], list[int]]:
        """Run once; return requests that have got a token, once for each, and those that ended."""
        self._pipeline.step()
        tokens, ended = [], []
        for key, handle in list(self._running.items()):
            while handle.can_read():
                for output in handle.read().values():
                    tokens += [key] * len(output.generated_ids)
            if handle.get_status() != self._genai.GenerationStatus.RUNNING:
                ended.append(key)
                del self._running[key]
        return tokens, ended
