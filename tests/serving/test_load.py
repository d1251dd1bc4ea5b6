"""Many clients, deaf clients, an engine that does not answer: nothing hangs or leaks."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx


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
