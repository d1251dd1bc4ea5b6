"""``create_app``: the service as an application, for another server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime_npu
import openai
import pytest
from onnxruntime_npu.errors import ArgumentError, ServingError
from onnxruntime_npu.serving import create_app
from starlette.testclient import TestClient


def children() -> set[str]:
    """Return the ids of the processes that threads of this one have started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def test_the_application_answers_from_its_start_on(served_directory, encoder_directory):
    assert onnxruntime_npu.serving.create_app is create_app
    options = {"model_name": "tiny", "embeddings": encoder_directory, "api_key": "secret"}
    before = children()
    with TestClient(create_app(served_directory, **options)) as transport:
        assert len(children() - before) == 2  # one for each model
        assert transport.get("/ready").status_code == 200
        assert transport.get("/v1/models").status_code == 401
        client = openai.OpenAI(
            base_url="http://testserver/v1", api_key="secret", http_client=transport
        )
        names = [model.id for model in client.models.list()]
        assert names == ["tiny", encoder_directory.name]
        answer = client.completions.create(model="tiny", prompt="ab", max_tokens=4, temperature=0)
        assert 1 <= answer.usage.completion_tokens <= 4
    assert children() <= before


def test_an_application_that_is_started_again_is_ready_when_its_models_are(served_directory):
    app = create_app(served_directory)
    asked = {"prompt": "ab", "max_tokens": 4, "temperature": 0}
    guided = {**asked, "response_format": {"type": "regex", "regex": "a+"}}
    answers = []
    for _ in range(2):
        with TestClient(app) as client:
            for body in (asked, guided):
                answer = client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                answers.append(answer.json()["choices"][0]["text"])
        assert TestClient(app).get("/ready").status_code == 503
    assert answers[:2] == answers[2:]


def test_a_missing_package_is_named_with_the_extra_that_has_it(served_directory):
    code = f"""
import sys
from onnxruntime_npu import serving

def told(package, use):
    kept, sys.modules[package] = sys.modules.get(package), None
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
    if kept is None:
        del sys.modules[package]
    else:
        sys.modules[package] = kept

told("ray", lambda: serving.ray_app)
told("fastapi", lambda: serving.create_app)
told("fastapi", lambda: print("create_app" in dir(serving)))
told("onnxruntime_genai", lambda: serving.create_app({str(served_directory)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "onnxruntime_npu.serving.ray_app needs the package ray: pip install 'onnxruntime-npu[ray]'",
        "onnxruntime_npu.serving.create_app needs the package fastapi: "
        "pip install 'onnxruntime-npu[serve]'",
        "False",
        "serving needs the package onnxruntime_genai: pip install 'onnxruntime-npu[serve]'",
    ], done.stderr


def test_the_key_is_that_of_the_environment(served_directory, monkeypatch):
    monkeypatch.setenv("ORT_NPU_API_KEY", "from outside")
    client = TestClient(create_app(served_directory))  # not started
    assert client.get("/v1/models").status_code == 401
    headers = {"authorization": "Bearer from outside"}
    assert client.get("/v1/models", headers=headers).status_code == 200


def test_an_engine_that_does_not_start_fails_the_start(
    served_directory, encoder_directory, tmp_path
):
    broken = shutil.copytree(served_directory, tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"no model")
    app = create_app(broken, embeddings=encoder_directory)

    async def start() -> set[str]:
        with pytest.raises(ServingError, match="the engine does not start"):
            async with app.router.lifespan_context(app):
                pass
        return children()

    before = children()
    assert asyncio.run(start()) <= before  # the encoder's process has ended, too


@pytest.mark.parametrize(
    ("directory", "options", "message"),
    [
        ("nowhere", {}, "no such directory: nowhere"),
        (None, {"port": 1}, "create_app expected options of provider, device, .*, got 'port'"),
    ],
)
def test_wrong_arguments_are_refused(served_directory, directory, options, message):
    with pytest.raises(ArgumentError, match=message):
        create_app(directory or served_directory, **options)
