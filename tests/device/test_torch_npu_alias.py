"""``install_as_torch_npu()`` and the names besides operators that scripts of torch_npu use."""

import pytest

pytest.importorskip("torch")

ALIAS = """
import onnxruntime_npu
onnxruntime_npu.install_as_torch_npu()
onnxruntime_npu.install_as_torch_npu()
import torch, torch_npu
import torch_npu.npu.utils as utils
from torch_npu.npu import streams
import torch_npu.npu.aclnn
from torch_npu.npu.amp.autocast_mode import autocast
from torch_npu.npu.amp.grad_scaler import GradScaler
import torch_npu.npu.graphs, torch_npu.npu.memory, torch_npu.npu.mstx, torch_npu.npu.random
from torch_npu.utils.collect_env import get_cann_version, get_torch_npu_version
assert torch_npu is onnxruntime_npu and torch_npu.npu is torch.npu
assert torch_npu.npu.aclnn is torch.npu.aclnn and torch_npu.npu.aclnn.allow_hf32 in (True, False)
assert autocast is torch.npu.amp.autocast and GradScaler is torch.npu.amp.GradScaler
assert utils is torch.npu.utils and streams.Stream is torch.npu.Stream
assert torch_npu.__version__ == get_torch_npu_version() and get_cann_version() == "not known"
assert utils.get_cann_version(module="CANN") == "" and torch.npu.is_bf16_supported()
assert torch.ones(2).npu().sum().item() == 2
try:
    import torch_npu.no_such_part
except ModuleNotFoundError as error:
    assert "torch_npu.no_such_part" in str(error)
else:
    raise AssertionError("imported what is not there")
"""

TAKEN = """
import sys, types
sys.modules["torch_npu"] = types.ModuleType("torch_npu")
import onnxruntime_npu
onnxruntime_npu.install_as_torch_npu()
"""


def test_unmodified_scripts_import_torch_npu(run_python):
    assert run_python(ALIAS) == (0, "")


def test_real_torch_npu_is_not_replaced(run_python):
    code, output = run_python(TAKEN)
    assert code == 1
    assert "expected that torch_npu is not imported yet" in output
