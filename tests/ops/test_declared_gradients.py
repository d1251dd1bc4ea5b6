"""Every gradient of torch_npu that is here belongs to an operator whose gradient is checked.

torch_npu_schemas.txt names the gradients as operators of their own, such as npu_ciou_backward. The
checks are those of test_gradients.py and test_compositions.py, which take what a definition
declares: here, that it declares it, and that there are samples to check it with.
"""

from __future__ import annotations

import re

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.opdef import Composition, all_compositions, all_ops
from op_paths import _tensors, bind, samples
from test_overloads import SCHEMAS, _name

OPERATORS = {**all_ops(), **all_compositions()}
# Named otherwise than their operator with an ending.
OTHERWISE = {"npu_bmm_v2_mat1_backward": "npu_bmmV2", "npu_bmm_v2_mat2_backward": "npu_bmmV2"}
CAST = "npu_dtype_cast"  # to a coarser type, where finite differences see steps: checked below


def _operator(gradient: str) -> str | None:
    """Return the operator of a name that is one of a gradient, if it is an operator's here."""
    name = OTHERWISE.get(gradient) or re.sub(r"(_backward|_grad|bk)$", "", gradient)
    if name == gradient or not hasattr(torch.ops.npu, gradient):
        return None
    return next((n for n in (name, f"_{name}") if n in OPERATORS), None)


GRADIENTS = {n: op for n in dict.fromkeys(map(_name, SCHEMAS)) if (op := _operator(n))}


def test_gradients_are_found() -> None:
    assert {"npu_lstm", "npu_roi_align", "npu_conv2d", "npu_ciou"} <= set(GRADIENTS.values())


@pytest.mark.parametrize(("gradient", "name"), GRADIENTS.items(), ids=GRADIENTS)
def test_its_operator_has_a_gradient_that_is_checked(gradient: str, name: str) -> None:
    op = OPERATORS[name]
    if name == CAST:
        return
    if not isinstance(op, Composition):
        assert op.backward_formula is not None
        return
    assert op.differentiable
    found = [s for s in samples(op, op.sample_dtypes[0]) if s.expect is None]
    assert any(all(t.numel() for t in _tensors([*bind(op, s).values()])) for s in found)


@pytest.mark.parametrize("device", ["cpu", *(["npu"] if torch_device.is_built() else [])])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradient_of_a_cast_is_cast_back(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    y = onnxruntime_npu.npu_dtype_cast(x * 1, dtype)
    assert y.dtype == dtype
    grad = torch.randn(3, 5).to(dtype)
    (got,) = torch.autograd.grad(y, x, grad.to(device))
    assert got.dtype == x.dtype and torch.equal(got.cpu(), grad.float())
