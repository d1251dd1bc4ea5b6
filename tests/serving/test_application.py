"""The application without a model: what a fault of its own looks like from outside."""

from __future__ import annotations

import json
import logging
import socket
from datetime import datetime

import pytest
from onnxruntime_npu.serving.app import service_app
from onnxruntime_npu.serving.log_format import begin_log, fields
from onnxruntime_npu.serving.metrics import Metrics
from onnxruntime_npu.serving.server import listen
from onnxruntime_npu.serving.service import Service
from onnxruntime_npu.serving.settings import Settings
from starlette.testclient import TestClient

ORIGIN = "https://page.example"


def test_a_fault_is_told_with_the_request_it_is_of(caplog):
    app = service_app(Service(Settings(cors_origins=(ORIGIN,)), Metrics()))

    @app.get("/fault")
    async def fault():
        raise RuntimeError("no such luck")

    client = TestClient(app, raise_server_exceptions=False)
    with caplog.at_level(logging.INFO, "onnxruntime_npu.serving"):
        answer = client.get("/fault", headers={"x-request-id": "my-own", "origin": ORIGIN})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "my-own"
    error = answer.json()["error"]
    assert error["code"] == "internal_error" and "my-own" in error["message"]
    assert "no such luck" not in answer.text
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "my-own failed" in caplog.text and "RuntimeError: no such luck" in caplog.text
    with caplog.at_level(logging.INFO, "onnxruntime_npu.serving"):
        client.get("/" + "a" * 50_000)
    own = [record for record in caplog.records if record.name == "onnxruntime_npu.serving"]
    assert own and max(len(record.getMessage()) for record in own) < 200
    assert "my-own GET /fault: 500" in caplog.text and "client gone" not in caplog.text
    assert 'npu_errors_total{kind="internal_error"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("host", ["::", "0:0:0:0:0:0:0:0"])
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the system has no IPv6")
def test_all_addresses_are_those_of_both_protocols(host):
    with listen(host, 0, 1.0) as listening:
        for own in ("127.0.0.1", "::1"):
            socket.create_connection((own, listening.getsockname()[1]), timeout=5).close()


def test_one_address_is_of_its_protocol():
    with listen("127.0.0.1", 0, 1.0) as listening:
        assert listening.family == socket.AF_INET


def test_lines_of_json(capsys, monkeypatch):
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    begin_log("json")
    log = logging.getLogger()
    log.info("%s \n %s", "a", "ü", extra=fields(request="my-own", status=None))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    one, other = map(json.loads, capsys.readouterr().err.splitlines())
    assert datetime.strptime(one.pop("time"), "%Y-%m-%dT%H:%M:%S.%fZ")
    assert one == {"level": "INFO", "message": "a \n ü", "request": "my-own", "status": None}
    assert other["level"] == "ERROR" and "ValueError: why" in other["exception"]


def test_there_are_no_pages_that_load_scripts_from_elsewhere():
    client = TestClient(service_app(Service(Settings(), Metrics())))
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"} <= set(paths)
