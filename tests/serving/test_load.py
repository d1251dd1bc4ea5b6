"""Many clients, deaf clients, an engine that does not answer: nothing hangs or leaks."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def wait_until(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def serves(server, port):
    """Whether the server has a connection with a client's port."""
    here, there = (f"0100007F:{number:04X}" for number in (urlsplit(server.url).port, port))
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return any(fields[1:4] == [here, there, "01"] for fields in lines)


def connect(server, **options):
    address = urlsplit(server.url)
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.connect((address.hostname, address.port))
    return connection


def test_an_engine_that_does_not_answer_stops_nobody_else(serve):
    server = serve("--max-queue", "2000", "--deadline", "3").wait_until_ready()
    body = {"prompt": [[1] * 100] * 500, "max_tokens": 2}  # more than a socket buffers
    statuses = []

    def ask():
        statuses.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=300))

    engine = server.engine_process()
    os.kill(engine, signal.SIGSTOP)
    asking = threading.Thread(target=ask)
    try:
        asking.start()
        server.wait_for("npu_requests_queued", 500)
        assert server.http.get("/health", timeout=30).status_code == 200
        asking.join(300)
        assert [answer.status_code for answer in statuses] == [504]
        assert server.metric("npu_requests_queued") == 0

        # A client that asks and never reads: its connection is closed after the deadline.
        with connect(server, SO_RCVBUF=2048) as deaf:
            port = deaf.getsockname()[1]
            assert serves(server, port)
            deaf.settimeout(1)
            request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
            try:
                while True:
                    deaf.sendall(request * 100)
            except OSError:  # full, or closed already
                pass
            wait_until(lambda: not serves(server, port), "the connection is left open")
    finally:
        os.kill(engine, signal.SIGCONT)
    assert server.http.get("/health").status_code == 200


def test_a_thousand_connections(server):
    before = open_files(server)
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == hard
    own, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = [connect(server) for _ in range(min(1000, own - 200, int(hard) - 200))]
    try:
        request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            connection.settimeout(60)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: open_files(server) <= before + 1, "connections are left open")


BODY = b'{"prompt": "a", "max_tokens": 1, "temperature": 0}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


def said_to(server, *parts, begun=b""):
    """Return what the server says to a client that sends a part now and then, until it closes."""
    with connect(server) as slow:
        slow.settimeout(0.2)
        slow.sendall(begun)
        parts, said = iter(parts), b""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if part := next(parts, b""):
                    slow.sendall(part)
                if not (received := slow.recv(65536)):
                    return said
                said += received
            except TimeoutError:
                pass
            except OSError:  # closed while something was sent
                return said
        raise AssertionError(f"the connection is left open after {said!r}")


def test_clients_that_never_finish_a_request_are_left(serve):
    server = serve("--deadline", "3").wait_until_ready()
    before = open_files(server)
    endless = [b"x"] * 10_000
    with ThreadPoolExecutor(6) as threads:
        silent = threads.submit(said_to, server)
        head = threads.submit(said_to, server, *endless, begun=HEAD[:12])
        body = threads.submit(said_to, server, *endless, begun=HEAD)
        nothing = threads.submit(said_to, server, begun=HEAD + BODY[:5])
        again = threads.submit(said_to, server, *endless, begun=HEAD + BODY + HEAD[:12])
        refused = HEAD.replace(b"%d" % len(BODY), b"9000000")
        large = threads.submit(said_to, server, *endless, begun=refused)
    assert silent.result() == head.result() == b""
    for answer in (body, nothing):
        assert answer.result().startswith(b"HTTP/1.1 408"), answer.result()
        assert b'"code":"body_timeout"' in answer.result()
    assert again.result().startswith(b"HTTP/1.1 200") and again.result().count(b"HTTP/1.1") == 1
    assert large.result().startswith(b"HTTP/1.1 413")
    wait_until(lambda: open_files(server) <= before, "connections are left open")
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200


def test_sixty_four_ragged_requests_at_once_are_equal_to_one_by_one(server):
    random = np.random.default_rng(9)
    prompts = [random.integers(0, 256, int(n)).tolist() for n in random.integers(1, 90, 64)]

    def complete(prompt):
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
        return server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]

    one_by_one = [complete(prompt) for prompt in prompts]
    with ThreadPoolExecutor(64) as threads:
        together = list(threads.map(complete, prompts))
    assert together == one_by_one and len(set(together)) > 32
    assert server.metric("npu_requests_running") == 0


def test_a_client_that_reads_slowly_gets_everything(server):
    body = {"prompt": "slowly", "max_tokens": 60, "temperature": 0, "n": 8}
    whole = server.http.post("/v1/completions", json=body).json()["choices"]
    with connect(server, SO_RCVBUF=2048) as slow:
        content = json.dumps({**body, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        received = b""
        while b"[DONE]" not in received:
            part = slow.recv(1500)
            assert part, received[-300:]
            received += part
            time.sleep(0.005)
    # Of chunked transfer only the lengths of chunks are not text of events.
    events = re.findall(rb"data: (\{.*?\})\n\n", received.replace(b"\r\n", b""))
    texts = [""] * 8
    for event in events:
        (choice,) = json.loads(event)["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]


def test_an_idle_connection_is_kept_longer_than_clients_keep_theirs(server):
    # Both ends closing after the same time, a request is lost now and then.
    address = server.http.base_url
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    for pause in (6, 0):  # httpx, and so OpenAI's client, keeps idle connections for 5 s
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        time.sleep(pause)
    connection.close()
