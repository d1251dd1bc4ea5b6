"""``install_as_torch_npu()`` and the thin names that scripts of torch_npu use beside operators."""

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


def test_the_real_torch_npu_keeps_its_name(run_python):
    code, output = run_python(TAKEN)
    assert code == 1
    assert "expected that torch_npu is not imported yet" in output


@pytest.fixture
def formats():
    from onnxruntime_npu import formats, npu, torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    npu.config.allow_internal_format = True
    yield formats
    npu.config.allow_internal_format = False


def test_a_format_is_a_label_of_the_storage(formats):
    import torch

    x = torch.rand(4, 6).npu()
    assert formats.get_npu_format(x) is formats.Format.ND
    tiled = formats.npu_format_cast(x, 29)
    assert formats.get_npu_format(tiled) is formats.Format.FRACTAL_NZ
    assert formats.get_npu_format(tiled[1:]) is formats.Format.FRACTAL_NZ
    assert formats.get_npu_format(x) is formats.Format.ND
    assert torch.equal(tiled.cpu(), x.cpu())
    assert formats.npu_format_cast(tiled, tiled) is tiled
    assert formats.npu_format_cast(x, 0).data_ptr() == x.data_ptr()  # plain to plain
    assert formats.get_npu_format(torch.empty(1, 2, 3, 4, device="npu")) is formats.Format.NCHW
    assert formats.get_npu_format(formats.npu_format_cast(torch.ones(3).npu(), 29)) == 2
    assert formats.get_storage_size(x[1:]) == 24
    assert formats.get_npu_format(formats.empty_with_format((2, 2), acl_format=29)) == 29


def test_a_cast_to_private_format_has_a_gradient(formats):
    import torch

    x = torch.rand(4, 6, device="npu", requires_grad=True)
    formats.npu_format_cast(x, 29).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(4, 6))


def test_private_formats_are_kept_only_while_allowed(formats):
    import torch
    from onnxruntime_npu import npu

    npu.config.allow_internal_format = False
    with pytest.warns(UserWarning, match="allow_internal_format is False"):
        cast = formats.npu_format_cast(torch.rand(4, 6).npu(), 29)
    assert formats.get_npu_format(cast) is formats.Format.ND


def test_formats_refuse_what_they_do_not_know(formats):
    import torch

    with pytest.raises(RuntimeError, match="expected acl_format of"):
        formats.npu_format_cast(torch.ones(2).npu(), 77)
    with pytest.raises(RuntimeError, match="expected all tensors to be on npu, got one on cpu"):
        formats.get_npu_format(torch.ones(2))
