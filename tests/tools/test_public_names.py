"""The public names that users and other projects rely on: none is renamed or taken away."""

from __future__ import annotations

import importlib
import inspect
import re

import onnxruntime
import onnxruntime_npu
import pytest
from onnxruntime_npu import cli

TARGETS = [
    "demo",
    "test",
    "bench",
    "check",
    "wheel",
    "serve-demo",
    "soak",
    "stress",
    "fuzz",
    "onnx-backend",
    "conformance",
    "arm64",
]
COMMANDS = [
    "info",
    "ops",
    "ops --json",
    *(f"export MODEL OUT --dtype {dtype}" for dtype in ("float32", "float16", "bfloat16")),
    *(f"export MODEL OUT --quant {quant}" for quant in ("none", "w8a8", "w8a16", "w4a16")),
    *(f"export MODEL OUT --cache {cache}" for cache in ("dynamic", "static", "paged")),
    "export MODEL OUT --opset 21",
    "generate OUT --prompt TEXT --max-new-tokens 3 --greedy",
    "serve OUT --host ::1 --port 0",
    "convert IN OUT",
    "inline IN OUT",
    "run SCRIPT --an-option of.the.script",
    "run --cuda SCRIPT",
    "bench",
]
# What a name is called with: positions by number, the rest by name.
CALLS = {
    "get_library_path": (0, ()),
    "get_ep_name": (0, ()),
    "get_ep_names": (0, ()),
    "assignment": (1, ()),
    "ortvalue_from_numpy": (1, ("device_id",)),
    "ortvalue_from_torch": (1, ()),
    "ortvalue_to_torch": (1, ()),
    "op_table": (0, ()),
    "npu_rms_norm": (2, ()),
    "npu.memory_allocated": (0, ()),
    "install_as_torch_npu": (0, ()),
    "export": (3, ("kwargs", "dynamic_shapes", "dtype", "opset")),
    "export_causal_lm": (2, ("dtype", "quant", "cache")),
    "export_encoder": (2, ()),
    "converters.quantize_weights": (2, ("group_size", "calibration")),
    "converters.convert": (2, ()),
    "converters.attach_bodies": (1, ()),
    "converters.inline": (2, ()),
    "serving.create_app": (1, ()),
}
MODULES = ("npu", "converters", "serving", "utils")
VARIABLES = [
    "ORT_NPU_DEVICE_COUNT",
    "ORT_NPU_MEMORY_LIMIT",
    "ORT_NPU_NUM_THREADS",
    "ORT_NPU_ISA",
    "ORT_NPU_BACKEND",
    "ORT_NPU_GUARD_MEMORY",
    "ORT_NPU_LAUNCH_BLOCKING",
    "ORT_NPU_LOG",
    "ORT_NPU_DEVICE_NAME",
    "PYTORCH_NPU_ALLOC_CONF",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_read(line):
    assert callable(cli._parser().parse_args(line.split()).run)


def test_targets_of_make_are_there(request):
    makefile = (request.config.rootpath / "Makefile").read_text()
    assert set(TARGETS) <= set(re.findall(r"^([a-z0-9-]+):.*##", makefile, re.MULTILINE))


def test_functions_take_what_they_are_called_with():
    for module in MODULES:
        importlib.import_module(f"onnxruntime_npu.{module}")
    for name, (positions, keywords) in CALLS.items():
        function = onnxruntime_npu
        for part in name.split("."):
            function = getattr(function, part)
        inspect.signature(function).bind(*range(positions), **dict.fromkeys(keywords))


def test_the_provider_and_the_operators_have_their_names():
    assert onnxruntime_npu.get_ep_name() == "NPUExecutionProvider"
    assert "NPUExecutionProvider" in onnxruntime.get_available_providers()
    operators = onnxruntime_npu.op_table()
    assert {operator["domain"] for operator in operators} == {"npu"}


def test_torch_has_the_device():
    torch = pytest.importorskip("torch")
    if not onnxruntime_npu.torch_device.is_built():
        pytest.skip("this build has no torch device")
    assert torch.npu is onnxruntime_npu.npu
    assert torch.npu.current_device() == 0
    assert torch.ones(2, device="npu").device == torch.ones(2).npu().device


def test_the_replicas_of_ray_are_built():
    pytest.importorskip("ray.serve", reason="needs Ray: pip install 'onnxruntime-npu[ray]'")
    assert callable(onnxruntime_npu.serving.ray_app.build)


def test_variables_of_the_environment_are_read(request):
    folders = [request.config.rootpath / name for name in ("python", "ep")]
    files = [file for folder in folders for file in folder.rglob("*.*")]
    texts = [file.read_text() for file in files if file.suffix in (".py", ".cc", ".h")]
    for variable in VARIABLES:
        assert any(f'"{variable}"' in text for text in texts), variable
