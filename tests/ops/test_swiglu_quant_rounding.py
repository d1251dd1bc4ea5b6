"""The roundings of npu_dequant_swiglu_quant: exact where its sigmoid is 1.

The derived tests allow a difference of one, in which two roundings may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import CPU, NPU, eager, eager_npu, make_model, reference, run_model

_OP = all_ops()["npu_dequant_swiglu_quant"]
_QUARTERS = range(-600, 601)  # beyond the ends of int8 on both sides
_GATE = 64  # its sigmoid is 1 in float32


def _half_away(x: float) -> int:
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


_ROUNDINGS = [round, _half_away, math.floor, math.ceil, math.trunc]


def _call(round_mode: int, *, dynamic: bool) -> Sample:
    """Return a call whose quotients are the quarters."""
    x = torch.tensor([[*_QUARTERS, *[_GATE] * len(_QUARTERS)]], dtype=torch.int32)
    if dynamic:
        # 127 beside the quotients, so that the scale is 1.
        within = [q for q in _QUARTERS if abs(q) <= 508]
        x = torch.tensor([[*within, *[_GATE] * len(within)]], dtype=torch.int32)
        scale = torch.full((len(within),), 1 / (4 * _GATE))
        return Sample(x, quant_scale=scale, quant_mode=1, round_mode=round_mode)
    scale = torch.full((len(_QUARTERS),), 4.0 * _GATE)
    return Sample(x, quant_scale=scale, round_mode=round_mode)


def _want(rounding: Callable[[float], int], *, dynamic: bool) -> torch.Tensor:
    quarters = [q for q in _QUARTERS if not dynamic or abs(q) <= 508]
    rounded = [max(-128, min(127, rounding(q / 4))) for q in quarters]
    return torch.tensor([rounded], dtype=torch.int8)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("round_mode", range(5))
def test_every_path_rounds_exactly(round_mode: int, *, dynamic: bool) -> None:
    sample = _call(round_mode, dynamic=dynamic)
    model: onnx.ModelProto = make_model(_OP, sample, body=True)
    want = _want(_ROUNDINGS[round_mode], dynamic=dynamic)
    paths = {
        "reference": reference(_OP, sample),
        "eager": eager(_OP, sample),
        "provider": run_model(model, NPU, _OP, sample),
        "body": run_model(model, CPU, _OP, sample),
    }
    if torch_device.is_built():
        paths["npu"] = eager_npu(_OP, sample)
    for path, (out, scale) in paths.items():
        assert torch.equal(out, want), path
        assert scale.tolist() == [float(dynamic)], path
