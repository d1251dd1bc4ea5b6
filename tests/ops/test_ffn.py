"""npu_ffn: the layers of experts equal those computed one by one with other operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime_npu  # noqa: F401  defines torch.ops.npu
import pytest
import torch
import torch.nn.functional as F

COUNTS = [4, 0, 9, 2]
E, K, H, N = len(COUNTS), 48, 64, 33


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 4


def _gated(f: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda h: f(h[:, : h.shape[1] // 2]) * h[:, h.shape[1] // 2 :]


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "FastGelu": lambda h: h * torch.sigmoid(1.702 * h),
    "relu": F.relu,
    "silu": F.silu,
    "SwiGLU": _gated(F.silu),
    "geglu": _gated(F.gelu),
    "reglu": _gated(F.relu),
}


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_experts_equal_layers_in_float64(device: str, activation: str) -> None:
    apply = ACTIVATIONS[activation]
    wide = 2 * H if activation.lower().endswith("glu") else H
    x, b1, b2 = _random(sum(COUNTS), K, seed=1), _random(E, wide, seed=2), _random(E, N, seed=3)
    w1, w2 = _random(E, K, wide, seed=4), _random(E, H, N, seed=5)
    parts = [
        apply(part.double() @ w1[e].double() + b1[e].double()) @ w2[e].double() + b2[e].double()
        for e, part in enumerate(x.split(COUNTS))
    ]
    ends = torch.tensor(COUNTS).cumsum(0).tolist()
    given: dict[str, Any]
    for given in ({"expert_tokens": COUNTS}, {"expert_tokens_index": ends}):
        y = torch.ops.npu.npu_ffn(
            *(t.to(device) for t in (x, w1, w2)),
            activation,
            bias1=b1.to(device),
            bias2=b2.to(device),
            **given,
        )
        # Two sums in float32 of up to 64 products of numbers around 1/4.
        torch.testing.assert_close(y.cpu().double(), torch.cat(parts), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_swiglu_of_experts_equals_grouped_matmuls(device: str) -> None:
    x, w1, w2 = (
        _random(sum(COUNTS), K, seed=1).to(device),
        _random(E, K, 2 * H, seed=4).to(device),
        _random(E, H, N, seed=5).to(device),
    )
    grouped = {"group_list": torch.tensor(COUNTS, device=device), "group_list_type": 1}
    (hidden,) = torch.ops.npu.npu_grouped_matmul([x], [w1], **grouped, group_type=0, split_item=3)
    hidden = torch.ops.npu.npu_swiglu(hidden)
    (expected,) = torch.ops.npu.npu_grouped_matmul(
        [hidden], [w2], **grouped, group_type=0, split_item=3
    )
    y = torch.ops.npu.npu_ffn(x, w1, w2, "swiglu", expert_tokens=COUNTS)
    torch.testing.assert_close(y.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_hidden_integers_saturate(device: str) -> None:
    x = torch.tensor([[100, -100]], dtype=torch.int8, device=device)
    eye = torch.eye(2, dtype=torch.int8, device=device)
    ones = torch.ones(2, device=device)
    y = torch.ops.npu.npu_ffn(
        x, eye, eye, "relu", scale=3 * ones[:1], offset=-50 * ones[:1],
        deq_scale1=ones, deq_scale2=ones,
    )  # fmt: skip
    assert y.dtype == torch.float16
    assert y.tolist() == [[127.0, -50.0]]
