"""A tiny exported model that speaks in bytes, and servers of it in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
import torch
import transformers
from export.conftest import tiny_model
from onnxruntime_npu.exporter import export_causal_lm, export_encoder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

Begun = TypeVar("Begun")

START, END = 256, 257
# A rule of more alternatives than one place of a text may have: a grammar fails where it comes.
ALTERNATIVES = "\n".join(
    ["rest: " + " | ".join(f"r{i}" for i in range(2500)), *(f'r{i}: "a" "a"' for i in range(2500))]
)
LEAST_ANSWER = 120
CONTEXT = 256
# Calls of tools as Hermes and Qwen write them; of the tools only the names, the context is short.
TEMPLATE = (
    "{% if tools %}<start>tools{% for t in tools %} {{ t.function.name }}{% endfor %}<end>"
    "{% endif %}"
    "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('who?') }}{% endif %}"
    "<start>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def byte_tokenizer() -> Any:
    """Return a tokenizer of one token a byte: text comes in parts of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<start>"), AddedToken("<end>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", chat_template=TEMPLATE
    )


def reference_model() -> Any:
    """Return the tiny model, of transformers."""
    return tiny_model(
        "llama",
        vocab_size=258,
        max_position_embeddings=CONTEXT,
        eos_token_id=END,
        bos_token_id=None,
    )


def export_tiny(folder: Path) -> Path:
    """Export the tiny model to a directory in a folder."""
    directory = folder / "tiny"
    export_causal_lm(reference_model(), directory, cache="paged", tokenizer=byte_tokenizer())
    return sized(directory, num_blocks=64, max_batch_size=16)


def weather_tool(properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    """Return a tool of these parameters, all of them needed, in the form of a request."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **schema,
    }
    function = {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


@pytest.fixture(scope="session")
def served_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(tmp_path_factory.mktemp("serving"))


def sized(directory: Path, **batching: int) -> Path:
    """Set sizes of the engine of an exported directory."""
    settings = json.loads((directory / "genai_config.json").read_text())
    settings["engine"]["dynamic_batching"].update(batching)
    (directory / "genai_config.json").write_text(json.dumps(settings))
    return directory


def tiny_encoder() -> Any:
    """Return a random BERT of the same tokenizer, without dropout."""
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def export_tiny_encoder(folder: Path) -> Path:
    """Export it to a directory in a folder."""
    directory = folder / "tiny-encoder"
    export_encoder(
        tiny_encoder(), directory, tokenizer=byte_tokenizer(), pooling="mean", normalize=True
    )
    return directory


@pytest.fixture(scope="session")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_encoder(tmp_path_factory.mktemp("serving"))


@pytest.fixture
def small_cache(served_directory: Path, tmp_path: Path) -> Path:
    """The directory with a cache of one context: three requests of 100 tokens do not fit."""
    return sized(shutil.copytree(served_directory, tmp_path / "small"), num_blocks=CONTEXT // 32)


class Server:
    """``onnxruntime-npu serve`` on a free port."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "onnxruntime_npu.cli", "serve", str(directory)]
        # A pipe would be full before a test reads it.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--port", "0", *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("serving "), self.stop()
        self.url = said.split()[-1]
        self.http = httpx.Client(base_url=self.url, timeout=600)
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=environment.get("ORT_NPU_API_KEY", "none"),
            max_retries=0,
            timeout=600,
        )

    def wait_until_ready(self) -> Server:
        deadline = time.monotonic() + 600
        while self.http.get("/ready").status_code != 200:
            assert time.monotonic() < deadline, "the engine is not ready after ten minutes"
            assert self.process.poll() is None, self.stop()
            time.sleep(0.05)
        return self

    def metric(self, name: str) -> float:
        """Return the value of one series, as /metrics shows it."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.rpartition(" ")[0] == name:
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"/metrics has no {name}")

    def wait_for(self, name: str, value: float) -> None:
        deadline = time.monotonic() + 300
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, expected {value}"
            time.sleep(0.02)

    def engine_process(self) -> int:
        """Return the id of the engine's process."""
        return self._child("engine_process")

    def encoder_process(self) -> int:
        """Return the id of the encoder's process."""
        return self._child("encoder_process")

    def grammar_process(self) -> int:
        """Return the id of the process that reads grammars."""
        return self._child("grammar_process")

    def _child(self, module: str) -> int:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        named = [c for c in listed.split() if module in Path(f"/proc/{c}/cmdline").read_text()]
        (child,) = named
        return int(child)

    @contextlib.contextmanager
    def engine_standing_still(self, after: Callable[[], Begun]) -> Iterator[Begun]:
        """Stop the engine's process in the middle of the answer that `after` begins.

        The engine runs for moments only, so that it does not come to the end of the answer, of at
        least LEAST_ANSWER tokens, before its first token is seen. On a busy machine a moment may
        be long enough: then another answer is begun.
        """
        engine = self.engine_process()
        try:
            with ThreadPoolExecutor(1) as threads:
                for _ in range(50):
                    before = self.metric("npu_generated_tokens_total")
                    begun = self._begun_in_moments(threads, engine, after)
                    if self._tokens_so_far(engine) - before < LEAST_ANSWER:
                        break
                    os.kill(engine, signal.SIGCONT)
                else:
                    raise AssertionError("every answer ended before the engine could be stopped")
            yield begun
        finally:
            with contextlib.suppress(ProcessLookupError):  # the test may have killed it
                os.kill(engine, signal.SIGCONT)

    def _begun_in_moments(
        self, threads: ThreadPoolExecutor, engine: int, after: Callable[[], Begun]
    ) -> Begun:
        begun = threads.submit(after)
        while not begun.done():
            os.kill(engine, signal.SIGCONT)
            time.sleep(0.002)
            os.kill(engine, signal.SIGSTOP)
            wait([begun], timeout=0.2)
        return begun.result()

    def _tokens_so_far(self, engine: int) -> float:
        """Return the count once the server has read what the stopped engine said before."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "the engine does not stop"
            time.sleep(0.01)
        self.metric("npu_generated_tokens_total")  # by its answer the server has read what was said
        return self.metric("npu_generated_tokens_total")

    def stop(self) -> str:
        """End the server and return its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=300)
        finally:
            self.process.kill()
        self._log.seek(0)
        return self._log.read()


@pytest.fixture(scope="session")
def server(served_directory: Path, encoder_directory: Path) -> Iterator[Server]:
    """A server of the tiny model, and of the tiny encoder beside it."""
    started = Server(served_directory, "--embeddings", str(encoder_directory))
    yield started.wait_until_ready()
    started.stop()


@pytest.fixture
def serve(served_directory: Path) -> Iterator[Callable[..., Server]]:
    """Start servers with other settings."""
    started: list[Server] = []

    def start(*arguments: str, directory: Path = served_directory, **environment: str) -> Server:
        started.append(Server(directory, *arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        each.stop()
