#!/usr/bin/env python3
"""Clients of all kinds against one server for a while: no lost request, nothing leaked.

    soak.py [--seconds 600] [--clients 16] [--seed 0]

The model is tiny and random; every answer is checked. Clients ask for greedy text whole and
streamed, for text of a pattern, for calls of tools and for embeddings; go away in the middle; ask
for what is refused; and now and then for more than the queue ever takes. At the end nothing runs,
no block of the cache is in use, and files and memory are what they were after the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from serving.conftest import Server, export_tiny, export_tiny_encoder

COUNT = 24
PATTERN = "[a-f]{3,12}!"
TOOL = {"type": "function", "function": {"name": "now"}}
REFUSED = (
    ({"prompt": "a", "temperature": 3}, 400),
    ({"prompt": "a" * 300}, 400),
    ({"prompt": "a", "model": "other"}, 404),
    ({"prompt": "a", "response_format": {"type": "regex", "regex": "("}}, 400),
    ({"prompt": "a", "logprobs": 21}, 400),
    ({"prompt": "a" * 5_000_000}, 413),
)
# Freed memory that an allocator keeps for later is not a leak, one that grows with requests is:
# hundreds of thousands of tokens pass, and each leaked one would take 28 bytes or more.
MORE_MEMORY = 24 * 2**20


@dataclass
class Soak:
    """What happens, and what was expected."""

    server: Server
    seed: int
    prompts: list[list[int]]
    texts: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def learn(self) -> None:
        """Ask for each answer alone."""
        with self._http() as http:
            self.texts = [
                http.post("/v1/completions", json=self._greedy(i)).json()["choices"][0]["text"]
                for i in range(len(self.prompts))
            ]

    def client(self, number: int) -> None:
        """Do one thing after the other until the end."""
        chance = random.Random(1000 * self.seed + number)
        actions: list[Callable[[httpx.Client, random.Random], None]] = [
            *[self.whole] * 4,
            *[self.streamed] * 4,
            *[self.pattern] * 2,
            *[self.scored] * 2,
            *[self.tools, self.responses, self.embeddings, self.leaves, self.refused, self.crowd],
        ]
        with self._http() as http:
            while not self.stop.is_set():
                action = chance.choice(actions)
                try:
                    action(http, chance)
                    self.done[action.__name__] += 1
                except Exception as error:
                    self.failures.append(f"{action.__name__}: {type(error).__name__} {error}")

    def whole(self, http: httpx.Client, chance: random.Random) -> None:
        i = chance.randrange(len(self.prompts))
        answer = _ok(http.post("/v1/completions", json=self._greedy(i)))
        assert answer["choices"][0]["text"] == self.texts[i], "another text"

    def streamed(self, http: httpx.Client, chance: random.Random) -> None:
        i = chance.randrange(len(self.prompts))
        text, last = "", ""
        body = {**self._greedy(i), "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            for line in filter(None, answer.iter_lines()):
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    text += json.loads(last)["choices"][0]["text"]
                if chance.random() < 0.01:
                    time.sleep(0.2)  # a slow reader
        assert (text, last) == (self.texts[i], "[DONE]"), "another text"

    def scored(self, http: httpx.Client, chance: random.Random) -> None:
        i = chance.randrange(len(self.prompts))
        echoed = {"logprobs": 2, "echo": chance.random() < 0.5}
        (choice,) = _ok(http.post("/v1/completions", json={**self._greedy(i), **echoed}))["choices"]
        assert choice["text"].endswith(self.texts[i]), "another text"
        prompt = len(self.prompts[i]) if echoed["echo"] else 0
        assert prompt <= len(choice["logprobs"]["tokens"]) <= prompt + COUNT

    def pattern(self, http: httpx.Client, chance: random.Random) -> None:
        form = {"type": "regex", "regex": PATTERN}
        body = {"prompt": "a", "max_tokens": 20, "n": chance.randint(1, 3), "response_format": form}
        for choice in _ok(http.post("/v1/completions", json=body))["choices"]:
            assert re.fullmatch(PATTERN, choice["text"]), choice["text"]

    def tools(self, http: httpx.Client, chance: random.Random) -> None:
        body = {"messages": [{"role": "user", "content": "?"}], "tools": [TOOL]}
        body |= {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 150}
        message = _ok(http.post("/v1/chat/completions", json=body))["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}

    def responses(self, http: httpx.Client, chance: random.Random) -> None:
        body = {"input": "?" * chance.randint(1, 100), "max_output_tokens": COUNT}
        text, last = "", {}
        with http.stream("POST", "/v1/responses", json={**body, "stream": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    last = json.loads(line.removeprefix("data: "))
                    text += last["delta"] if last["type"] == "response.output_text.delta" else ""
        assert last["type"] in ("response.completed", "response.incomplete"), last
        (item,) = last["response"]["output"]
        assert item["content"][0]["text"] == text, "another text"

    def embeddings(self, http: httpx.Client, chance: random.Random) -> None:
        body = {"input": ["ab" * chance.randint(1, 60) for _ in range(chance.randint(1, 40))]}
        data = _ok(http.post("/v1/embeddings", json=body))["data"]
        assert len(data) == len(body["input"])
        assert all(abs(sum(x * x for x in each["embedding"]) - 1) < 1e-3 for each in data)

    def leaves(self, http: httpx.Client, chance: random.Random) -> None:
        body = {"prompt": "a", "max_tokens": 150, "stream": chance.random() < 0.5}
        body |= chance.choice([{}, {"logprobs": 0}])
        with contextlib.suppress(httpx.ReadTimeout), self._http(chance.random() / 10) as mine:
            if body["stream"]:
                with mine.stream("POST", "/v1/completions", json=body) as answer:
                    next(answer.iter_lines(), None)
            else:
                mine.post("/v1/completions", json=body)

    def refused(self, http: httpx.Client, chance: random.Random) -> None:
        body, status = chance.choice(REFUSED)
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == status, answer.text[:200]
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    def crowd(self, http: httpx.Client, chance: random.Random) -> None:
        answer = http.post("/v1/completions", json={"prompt": ["a"] * 400, "max_tokens": 2})
        assert answer.status_code == 400 and "answers of a request" in answer.text

    def _greedy(self, i: int) -> dict[str, object]:
        return {"model": "tiny", "prompt": self.prompts[i], "max_tokens": COUNT, "temperature": 0}

    def _http(self, timeout: float = 300) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=timeout)


def _ok(answer: httpx.Response) -> dict[str, list[dict[str, object]]]:
    assert answer.status_code == 200, answer.text[:300]
    return answer.json()


def holdings(server: Server) -> dict[str, int]:
    """Return memory of each process in bytes, and the server's open files, when all is quiet."""
    for name in ("npu_requests_running", "npu_requests_queued", "npu_cache_blocks_used"):
        server.wait_for(name, 0)
    processes = {
        "server": server.process.pid,
        "engine": server.engine_process(),
        "encoder": server.encoder_process(),
    }
    pages = {
        name: int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        for name, pid in processes.items()
    }
    held = {name: number * os.sysconf("SC_PAGE_SIZE") for name, number in pages.items()}
    return {**held, "files": len(os.listdir(f"/proc/{server.process.pid}/fd"))}


def soak(server: Server, seconds: float, clients: int, seed: int) -> Counter[str]:
    """Run clients for a while; returns how often each thing was done, raises at what is wrong."""
    chance = random.Random(seed)
    prompts = [[chance.randrange(256) for _ in range(chance.randint(1, 100))] for _ in range(32)]
    run = Soak(server, seed, prompts)
    run.learn()
    restarts = server.metric("npu_engine_restarts_total")
    before = {}
    for part in (0.1, 0.9):
        run.stop.clear()
        threads = [threading.Thread(target=run.client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        run.stop.wait(part * seconds)
        run.stop.set()
        for thread in threads:
            thread.join()
        assert not run.failures, f"{len(run.failures)} of {run.done}: {run.failures[:5]}"
        after = holdings(server)
        print(f"{sum(run.done.values())} requests, {after}", flush=True)
        before = before or after
    more = {name: after[name] - before[name] for name in after}
    # One connection may be kept alive by the client that reads metrics.
    assert more.pop("files") <= 1, "files are left open"
    assert all(grown <= MORE_MEMORY for grown in more.values()), f"memory grew by {more}"
    assert server.metric("npu_engine_restarts_total") == restarts
    return run.done


def main() -> None:
    """Export the models, serve them, run the clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, encoder = export_tiny(Path(folder)), export_tiny_encoder(Path(folder))
        server = Server(model, "--embeddings", str(encoder)).wait_until_ready()
        try:
            done = soak(server, arguments.seconds, arguments.clients, arguments.seed)
        finally:
            server.stop()
    print(f"each as expected: {dict(done)}")


if __name__ == "__main__":
    main()
