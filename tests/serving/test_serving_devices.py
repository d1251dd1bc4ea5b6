"""Engines on one device of several."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("device", [0, 1])
def test_an_engine_runs_on_its_device(served_directory, run_python, device):
    code, output = run_python(
        f"""
from pathlib import Path
import onnxruntime_genai as og, onnxruntime_npu
from onnxruntime_npu.serving.engine_process import open_model
og.register_execution_provider_library(
    onnxruntime_npu.get_ep_name(), onnxruntime_npu.get_library_path()
)
model = open_model(Path({str(served_directory)!r}), onnxruntime_npu.get_ep_name(), {device})
used = [onnxruntime_npu.npu.memory_allocated(i) > 0 for i in range(2)]
assert used == [{device} == 0, {device} == 1], used
""",
        ORT_NPU_DEVICE_COUNT="2",
    )
    assert code == 0, output


def test_a_device_that_does_not_exist_ends_the_server(served_directory, run_python):
    code, output = run_python(
        f"""
import sys
from onnxruntime_npu.cli import main
sys.exit(main(["serve", {str(served_directory)!r}, "--port", "0", "--device", "3"]))
""",
        ORT_NPU_DEVICE_COUNT="2",
    )
    assert code == 1, output
    assert "the engine does not start: expected a device from 0 to 1, got 3" in output
