"""Clients that speak HTTP in other ways: what is allowed is answered, all else refused."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
from urllib.parse import urlsplit

import pytest

BODY = {"prompt": "a", "max_tokens": 3, "temperature": 0}
OFFERS = {
    "h2c": "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\n",
    "websocket": "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n",
}


@pytest.fixture
def connection(server):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connected:
        yield connected


@pytest.fixture
def text(server):
    """What the model says to BODY."""
    return server.http.post("/v1/completions", json=BODY).json()["choices"][0]["text"]


def post(headers="", version="1.1", **changes):
    """Return a request in bytes."""
    body = json.dumps({**BODY, **changes})
    return (
        f"POST /v1/completions HTTP/{version}\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n{body}"
    ).encode()


def said(connection):
    """Return all that the server says until it closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def answer(connection):
    """Return the status, the headers and the text of the next answer."""
    read = http.client.HTTPResponse(connection)
    read.begin()
    return read.status, read.headers, read.read()


def answered_text(connection):
    status, _, content = answer(connection)
    assert status == 200, content
    return json.loads(content)["choices"][0]["text"]


def streamed_text(body):
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines.pop() == b"[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_to_change_the_protocol_is_not_taken_up(connection, text, offer):
    for headers in (OFFERS[offer], "", OFFERS[offer]):
        connection.sendall(post(headers))
        assert answered_text(connection) == text
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: a\r\n{OFFERS[offer]}\r\n".encode())
    assert answer(connection)[0] == 200
    request = post(OFFERS[offer])
    for piece in (request[:30], request[30:-20], request[-20:]):
        connection.sendall(piece)
    assert answered_text(connection) == text


def test_many_offers_at_once_are_read_one_by_one(connection):
    request = f"GET /health HTTP/1.1\r\nHost: a\r\n{OFFERS['h2c']}\r\n".encode()
    connection.sendall(2000 * request + request.replace(b"Host: a", b"Connection: close"))
    assert said(connection).count(b"HTTP/1.1 200 ") == 2001


def test_a_tunnel_is_refused(connection):
    connection.sendall(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n\x16\x03\x01")
    assert said(connection).startswith(b"HTTP/1.1 4")


def test_clients_of_http_1_0_get_no_chunks(connection, text):
    connection.sendall(post(version="1.0", stream=True))
    head, _, body = said(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in head.lower()
    assert streamed_text(body) == text


def test_clients_of_http_1_0_get_whole_answers(connection, text):
    connection.sendall(post(version="1.0"))
    assert answered_text(connection) == text


def test_requests_in_a_row_are_answered_in_their_order(connection, text):
    last = post("Connection: close\r\n")
    connection.sendall(post(stream=True) + post(prompt=5) + post(OFFERS["h2c"]) + last)
    whole = said(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", whole) == [b"200", b"400", b"200", b"200"]
    streamed, _, _ = whole.partition(b"HTTP/1.1 400")
    assert b"[DONE]" in streamed and whole.count(b"[DONE]") == 1
    assert whole.count(json.dumps(text, ensure_ascii=False)[1:-1].encode()) == 2


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /health HTTP/1.1\r\nX-Long: ",
        b"GET /",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-End: ",
    ],
    ids=["header", "path", "trailer"],
)
def test_heads_without_an_end_are_refused(server, connection, begun):
    connection.sendall(begun)
    try:
        for _ in range(100):
            connection.sendall(b"a" * 2**16)
    except OSError:  # closed before all was sent
        pass
    else:
        raise AssertionError("six megabytes are taken for a head")
    assert server.http.get("/health").status_code == 200


def test_what_is_no_http_is_refused_in_openais_shape(connection):
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    status, headers, content = answer(connection)
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(content)["error"]["code"] == "bad_http"


def test_monitors_may_ask_for_heads(server):
    for path in ("/", "/health", "/ready", "/v1/models"):
        asked, got = server.http.head(path), server.http.get(path)
        assert (asked.status_code, asked.content) == (200, b"")
        assert asked.headers["content-length"] == got.headers["content-length"]
    assert server.http.head("/v1/completions").status_code == 405


def test_bodies_in_other_encodings_are_refused_by_name(server, connection):
    content = gzip.compress(json.dumps(BODY).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused = server.http.post("/v1/completions", content=content, headers=headers)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (415, "unsupported_encoding")
    assert "gzip" in error["message"]
    headers["Content-Encoding"] = "identity"
    content = json.dumps(BODY).encode()
    assert server.http.post("/v1/completions", content=content, headers=headers).status_code == 200
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    status, _, told = answer(connection)
    assert status == 415 and b"Transfer-Encoding: gzip, chunked" in told
    content = b'{"prompt": "\xff"}'
    refused = server.http.post("/v1/completions", content=content, headers=headers)
    assert refused.status_code == 400 and "UTF-8" in refused.json()["error"]["message"]
