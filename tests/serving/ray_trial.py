"""A cluster of two replicas on this machine, one of them killed under load; prints what happened.

A program of its own: Ray starts processes that must not outlive a test, and changes the process
that connects to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ray
from onnxruntime_npu.serving.ray_app import Arguments, build
from ray import serve

BODY = {"prompt": "a", "max_tokens": 120, "temperature": 0}
CLIENTS, REQUESTS = 12, 48


def engines() -> dict[int, str]:
    """Return the device of each engine process of this cluster, by process id."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "onnxruntime_npu.serving.engine_process" in command and DIRECTORY in command:
            found[int(place.name)] = command[-2]
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


def ask(url: str, number: int) -> str:
    """Return the answer's text, or how the request failed."""
    try:
        if number % 3:
            answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=120)
            if answer.status_code != 200:
                return f"status {answer.status_code}"
            return "text " + answer.json()["choices"][0]["text"]
        text = ""
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={**BODY, "stream": True}, timeout=120
        ) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}"
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return "text " + text
                if line:
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return f"error event {event['error']['code']}"
                    text += event["choices"][0]["text"]
        return "broken stream"
    except httpx.TimeoutException:
        return "hung"
    except (httpx.HTTPError, ValueError) as error:
        return f"broken: {type(error).__name__}"


def free_port() -> int:
    """Return a port of those that neither Ray's workers nor connections get by themselves."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port")


def main() -> dict[str, Any]:
    ray.init(
        num_cpus=4, resources={"NPU": 2}, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 * 2**20,
    )  # fmt: skip
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(Arguments(directory=DIRECTORY, name="tiny", min_replicas=2, max_replicas=2)))
    url = f"http://127.0.0.1:{port}"
    until(lambda: len(engines()) == 2, "two engines")
    first = engines()
    models = httpx.get(f"{url}/v1/models", timeout=60).json()
    refused = httpx.post(f"{url}/v1/completions", json={**BODY, "model": "other"}, timeout=60)
    reference = ask(url, 1)

    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = [pool.submit(ask, url, number) for number in range(REQUESTS)]
        until(lambda: sum(run.done() for run in runs) >= 4, "first answers")
        # Requests that the victim has begun cannot end before it is killed.
        victim = min(first)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(2)
        os.kill(parent(victim), signal.SIGKILL)
        killed = time.monotonic()
        os.kill(victim, signal.SIGCONT)
        pending = sum(not run.done() for run in runs)
        results = [run.result() for run in runs]
        seconds = time.monotonic() - killed
    until(lambda: victim not in engines(), "the end of the victim's engine")
    until(lambda: len(engines()) == 2, "another replica")
    until(lambda: ask(url, 1) == reference and ask(url, 3) == reference, "right answers")
    second = engines()
    serve.shutdown()
    ray.shutdown()
    until(lambda: not engines(), "the end of the engines")
    return {
        "devices": [sorted(first.values()), sorted(second.values())],
        "replaced": victim not in second,
        "models": [model["id"] for model in models["data"]],
        "refused": [refused.status_code, refused.json()["error"]["code"]],
        "reference": reference,
        "pending": pending,
        "seconds": round(seconds, 1),
        "results": Counter("right" if result == reference else result for result in results),
    }


if __name__ == "__main__":
    DIRECTORY = sys.argv[1]
    print(json.dumps(main()))
