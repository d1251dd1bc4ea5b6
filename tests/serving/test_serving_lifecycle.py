"""Servers from start to end: limits, failures, signals, mistakes of who starts them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from onnxruntime_npu import cli

from .conftest import sized

USER = {"role": "user", "content": "hi"}
LONG = {"prompt": "a", "max_tokens": 200, "temperature": 0}


def complete(server, **options):
    return server.client.completions.create(model="tiny", **{**LONG, **options})


def begin(server):
    """Return a stream whose first event has come."""
    stream = complete(server, stream=True)
    next(iter(stream))
    return stream


def test_limits_key_and_origins(serve):
    server = serve(
        *("--max-queue", "1", "--deadline", "0.02", "--max-body", "5000"),
        *("--cors-origin", "https://page.example", "--name", "tiny"),
        ORT_NPU_API_KEY="secret",
    ).wait_until_ready()  # monitors need no key
    assert server.http.get("/v1/models").status_code == 401
    wrong = {"Authorization": "Bearer Secret"}
    refused = server.http.post("/v1/completions", json=LONG, headers=wrong)
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert refused.headers["www-authenticate"] == "Bearer"
    named = {"Authorization": "bearer secret"}  # names of schemes have no case
    assert server.http.get("/v1/models", headers=named).status_code == 200
    asked = {
        **{"Origin": "https://page.example", "Access-Control-Request-Method": "POST"},
        "Access-Control-Request-Headers": "authorization",
    }
    allowed = server.http.options("/v1/completions", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    other = server.http.options("/v1/completions", headers={**asked, "Origin": "https://other"})
    assert "access-control-allow-origin" not in other.headers

    with pytest.raises(openai.InternalServerError, match=r"did not") as late:
        complete(server, n=16)
    assert late.value.status_code == 504 and late.value.code == "deadline_exceeded"
    with pytest.raises(openai.APIError, match=r"did not end within 0.02 seconds"):
        list(complete(server, n=16, stream=True))
    server.wait_for("npu_requests_running", 0)
    with pytest.raises(openai.BadRequestError, match="at most 17 answers of a request, got 18"):
        complete(server, prompt=["a"] * 9, n=2)  # 16 of a batch and 1 that may wait
    with pytest.raises(openai.APIStatusError) as large:
        complete(server, prompt="a" * 6000)
    assert large.value.status_code == 413
    assert server.http.get("/v1/x%0aforged").status_code == 401
    log = server.stop()
    assert server.process.returncode == 0 and "secret" not in log
    assert "GET /v1/x%0Aforged: 401" in log and "\nforged" not in log


@pytest.mark.parametrize("key", ["secret\n", " secret", "sec\tret", "sec\udcffret"])
def test_a_key_that_no_header_holds_is_refused(monkeypatch, capsys, key):
    monkeypatch.setenv("ORT_NPU_API_KEY", key)
    assert cli.main(["serve", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert "ORT_NPU_API_KEY expected a key without space around it" in error
    assert "sec" not in error and error.count("\n") == 1


def test_a_full_cache_gives_right_answers(serve, small_cache, server):
    crowded = serve("--name", "tiny", directory=small_cache).wait_until_ready()
    prompts = ["one" * 20, "two" * 18, "three" * 9]
    expected = [complete(server, prompt=p, max_tokens=60).choices[0].text for p in prompts]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda p: complete(crowded, prompt=p, max_tokens=60), prompts))
    assert [answer.choices[0].text for answer in answers] == expected

    # The engine's process dies under load: what runs ends with 503, and another process serves.
    with crowded.engine_standing_still(after=lambda: begin(crowded)) as stream:
        with pytest.raises(openai.RateLimitError) as refusal:  # 16 of a batch and 256 may wait
            complete(crowded, prompt=["a"] * (16 + 256))
        assert 1 <= int(refusal.value.response.headers["retry-after"]) <= 60
        os.kill(crowded.engine_process(), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="the engine failed: its process ended"):
        list(stream)
    with pytest.raises(openai.InternalServerError) as unavailable:
        complete(crowded)
    assert unavailable.value.status_code == 503
    assert unavailable.value.response.headers["retry-after"]
    assert crowded.http.get("/health").status_code == 200
    crowded.wait_until_ready()
    assert complete(crowded, prompt=prompts[0], max_tokens=60).choices[0].text == expected[0]
    assert crowded.metric("npu_engine_restarts_total") == 1

    # SIGTERM: what runs ends as it would have, nothing new is taken.
    stream = complete(crowded, max_tokens=100, stream=True)
    events = iter(stream)
    first = next(events).choices[0].text
    crowded.process.send_signal(signal.SIGTERM)
    rest = list(events)
    assert rest[-1].choices[0].finish_reason in ("length", "stop")
    whole = complete(server, max_tokens=100).choices[0].text
    assert first + "".join(event.choices[0].text for event in rest) == whole
    assert crowded.process.wait(300) == 0


def test_requests_that_are_longer_than_the_cache_are_refused(serve, small_cache):
    server = serve("--deadline", "60", directory=sized(small_cache, num_blocks=4))
    server.wait_until_ready()
    (card,) = server.http.get("/v1/models").json()["data"]
    assert card["max_model_len"] == 4 * 32
    for options in ({"max_tokens": 0}, {"max_tokens": 1, "logprobs": 1}, {"max_tokens": 1}):
        for length in (4 * 32, 4 * 32 + 1):
            body = {"prompt": [1] * (length - options["max_tokens"]), **options}
            answer = server.http.post("/v1/completions", json=body)
            assert answer.status_code == (200 if length <= 4 * 32 else 400), answer.text


def test_a_second_signal_ends_at_once(serve):
    server = serve().wait_until_ready()
    engine = server.engine_process()
    # So the request does not end.
    with server.engine_standing_still(after=lambda: begin(server)) as stream:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(300) == 0
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            list(stream)
    deadline = time.monotonic() + 300
    while os.path.exists(f"/proc/{engine}"):
        assert time.monotonic() < deadline, "the engine's process is left"
        time.sleep(0.05)
    log = server.stop()
    assert "SIGTERM: stopping" in log and "Traceback" not in log


def test_mistakes_at_the_start_are_one_line(served_directory, tmp_path, capsys):
    from onnxruntime_npu import cli

    def fails(directory, *arguments):
        code = cli.main(["serve", str(directory), *arguments])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        return code, lines[0]

    assert fails(tmp_path / "none") == (
        2,
        f"onnxruntime-npu: error: no such directory: {tmp_path / 'none'}",
    )
    code, line = fails(tmp_path)
    assert code == 2 and "holds no genai_config.json: expected what" in line
    file = served_directory / "model.onnx"
    assert fails(file)[1].endswith(f"expected a directory, got the file {file}")
    assert fails(served_directory, "--name", "")[1].endswith("got an empty text")
    report = {"cache": "paged", "warnings": ["no genai_config.json: it keeps no scales"]}
    (tmp_path / "export_report.json").write_text(json.dumps(report))
    code, line = fails(tmp_path)
    assert code == 2 and line.endswith("holds no genai_config.json: it keeps no scales")
    growing = tmp_path / "growing"
    shutil.copytree(served_directory, growing)
    settings = json.loads((growing / "genai_config.json").read_text())
    del settings["engine"]
    (growing / "genai_config.json").write_text(json.dumps(settings))
    (growing / "export_report.json").write_text('{"cache": "dynamic"}')
    code, line = fails(growing)
    assert code == 2 and "expected a model exported with --cache paged, got dynamic" in line
    (growing / "genai_config.json").write_text("{")
    code, line = fails(growing)
    assert code == 2 and "expected JSON in UTF-8 in " in line and "genai_config.json, got" in line
    (growing / "genai_config.json").write_text("[]")
    code, line = fails(growing)
    assert code == 2 and "expected a JSON object in " in line and line.endswith(", got list")
    warm = tmp_path / "warm"
    shutil.copytree(served_directory, warm)
    (warm / "generation_config.json").write_text('{"temperature": "warm", "top_p": null}')
    code, line = fails(warm)
    assert code == 2 and "expected temperature of generation_config.json to be a number" in line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = fails(served_directory, "--port", str(port))
        assert code == 1 and line.endswith(f"port {port} is in use: choose another one with --port")
    code, line = fails(served_directory, "--port", "70000")
    assert code == 2 and "expected a port from 0 to 65535, got 70000" in line


def test_an_engine_that_does_not_start_ends_the_server(served_directory, tmp_path):
    broken = shutil.copytree(served_directory, tmp_path / "broken")
    (broken / "model.onnx").write_bytes((broken / "model.onnx").read_bytes()[:1000])
    done = subprocess.run(
        [sys.executable, "-m", "onnxruntime_npu.cli", "serve", str(broken), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("onnxruntime-npu: error: the engine does not start: ")


def test_a_missing_package_says_what_to_install(served_directory, monkeypatch, capsys):
    from onnxruntime_npu import cli

    for name in [n for n in sys.modules if n.startswith("onnxruntime_npu.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve", str(served_directory)]) == 1
    expected = "serving needs the package uvicorn: pip install 'onnxruntime-npu[serve]'"
    assert expected in capsys.readouterr().err


def test_an_encoder_is_served_alone(serve, encoder_directory, tmp_path, capsys):
    from onnxruntime_npu import cli

    server = serve("--name", "vectors", directory=encoder_directory).wait_until_ready()
    answer = server.client.embeddings.create(model="vectors", input=["a", "b"])
    assert len(answer.data) == 2 and len(answer.data[0].embedding) == 64
    refused = server.http.post("/v1/chat/completions", json={"messages": [USER]})
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
    server.stop()
    assert server.process.returncode == 0

    without = shutil.copytree(encoder_directory, tmp_path / "hidden states")
    report = json.loads((without / "export_report.json").read_text())
    (without / "export_report.json").write_text(json.dumps({**report, "pooling": "none"}))
    assert cli.main(["serve", str(without)]) == 2
    assert "makes no embeddings: export it again" in capsys.readouterr().err
