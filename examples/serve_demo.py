#!/usr/bin/env python3
"""Serves SmolLM2-135M-Instruct and asks it a question; run by `make serve-demo`.

The weights are those of demo.py. The export is cached under build/demo.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

import httpx
from demo import exported
from openai import OpenAI


def wait_until_ready(url: str, server: subprocess.Popen[str]) -> None:
    """Return when the server has loaded the model."""
    while httpx.get(f"{url}/ready").status_code != 200:
        if server.poll() is not None:
            sys.exit("the server has ended")
        time.sleep(0.2)


def main() -> None:
    """Export if needed, start the server, print the answer as it comes, stop the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What is the capital of France?")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    arguments = parser.parse_args()

    directory = exported(arguments.dtype, "paged")
    command = ["onnxruntime_npu.cli", "serve", str(directory), "--port", "0", "--name", "smollm2"]
    server = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline().strip()
        if not said:
            sys.exit("the server has not started")
        print(said)
        url = said.split()[-1]
        wait_until_ready(url, server)
        print(f"\n> {arguments.prompt}\n")
        events = OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": arguments.prompt}],
            max_completion_tokens=arguments.max_tokens,
            temperature=0,
            stream=True,
        )
        for event in events:
            print(event.choices[0].delta.content or "", end="", flush=True)
        print("\n")
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait()
    print(f"the server ended with code {code}")


if __name__ == "__main__":
    main()
