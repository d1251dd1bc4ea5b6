"""Gradients that torch_npu registers by a name of their own: as autograd has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime_npu as ops
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.errors import ArgumentError

DEVICES = ["cpu", *(["npu"] if torch_device.is_built() else [])]
devices = pytest.mark.parametrize("device", DEVICES)


def _tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _activation(name: str, **options: Any) -> tuple[Any, ...]:
    return (
        [_tensor(3, 7)],
        lambda x: getattr(ops, name)(x, **options),
        lambda dy, x: getattr(ops, f"{name}_backward")(dy, x, **options),
    )


MASK = torch.tensor([True, False, False, True, False]).expand(3, 1, 5)
TARGET = torch.tensor([2, 0, 1, 2])
WEIGHT = torch.tensor([0.5, 1.0, 0.25])
LEFT, RIGHT = _tensor(2, 1, 3, 4), _tensor(5, 4, 2)


def _loss(target: torch.Tensor, weight: torch.Tensor | None, **options: Any) -> tuple[Any, ...]:
    def on(device: torch.device) -> tuple[Any, ...]:
        return target.to(device), None if weight is None else weight.to(device)

    return (
        [_tensor(4, 3)],
        lambda x: ops.npu_cross_entropy_loss(x, *on(x.device), **options)[0],
        lambda dy, x: ops.npu_cross_entropy_loss_backward(
            dy, x.log_softmax(-1), *on(x.device), **options
        ),
    )


def _dropped(self: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return ops.npu_dropout_with_add_softmax(self, x1, 0.5, 0.25, -1)[2]


def _dropped_backward(dy: torch.Tensor, self: torch.Tensor, x1: torch.Tensor) -> Any:
    torch.manual_seed(3)
    mask, softmax, _ = ops.npu_dropout_with_add_softmax(self, x1, 0.5, 0.25, -1)
    return ops.npu_dropout_with_add_softmax_backward(dy, mask, softmax, 0.5, 0.25, -1)


def _group_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> Any:
    _, mean, rstd = ops.npu_group_norm_swish(x, 2, w, b, 1e-5, 1.5)
    return ops.npu_group_norm_swish_grad(dy, x, 2, w, b, mean, rstd, [True] * 3, 1.5)


# Leaves, the operator of them, and its gradients by name for a gradient of its result.
CALLS: dict[str, tuple[list[torch.Tensor], Callable[..., Any], Callable[..., Any]]] = {
    "gelu": _activation("npu_gelu"),
    "gelu_tanh": _activation("npu_gelu", approximate="tanh"),
    "fast_gelu": _activation("npu_fast_gelu"),
    "mish": _activation("npu_mish"),
    "silu": (
        [_tensor(3, 7)],
        ops.npu_silu,
        lambda dy, x: ops.npu_silu_backward(dy, x, ops.npu_silu(x)),
    ),
    "group_norm_swish": (
        [_tensor(2, 4, 5), _tensor(4), _tensor(4)],
        lambda x, w, b: ops.npu_group_norm_swish(x, 2, w, b, 1e-5, 1.5)[0],
        _group_norm_backward,
    ),
    "scaled_masked_softmax": (
        [_tensor(2, 3, 4, 5)],
        lambda x: ops.npu_scaled_masked_softmax(x, MASK.to(x.device), 0.5, False),
        lambda dy, x: ops.npu_scaled_masked_softmax_backward(
            dy,
            ops.npu_scaled_masked_softmax(x, MASK.to(x.device), 0.5, False),
            MASK.to(x.device),
            0.5,
            False,
        ),
    ),
    "loss_mean": _loss(TARGET, WEIGHT),
    "loss_sum": _loss(TARGET, None, reduction="sum", ignore_index=2),
    "loss_none": _loss(TARGET, WEIGHT, reduction="none", label_smoothing=0.1),
    "linear": (
        [_tensor(5, 4), _tensor(3, 4)],
        ops.npu_linear,
        lambda dy, x, w: ops.npu_linear_backward(dy, x, w),
    ),
    "bmm": (
        [LEFT, RIGHT],
        lambda a, b: ops.npu_bmmV2(a, b, []),
        lambda dy, a, b: (
            ops.npu_bmm_v2_mat1_backward(dy, a, b, a.shape),
            ops.npu_bmm_v2_mat2_backward(dy, a, b, b.shape),
        ),
    ),
    "bmm_of_vectors": (
        [_tensor(4), _tensor(3, 4, 2)],
        lambda a, b: ops.npu_bmmV2(a, b, []),
        lambda dy, a, b: (
            ops.npu_bmm_v2_mat1_backward(dy, a, b, a.shape),
            ops.npu_bmm_v2_mat2_backward(dy, a, b, b.shape),
        ),
    ),
    "dropout_with_add_softmax": ([_tensor(2, 3, 5), _tensor(2, 3, 5)], _dropped, _dropped_backward),
}


@devices
@pytest.mark.parametrize("name", CALLS)
def test_equals_autograd(name: str, device: str) -> None:
    leaves, run, backward = CALLS[name]
    leaves = [leaf.detach().to(device).requires_grad_() for leaf in leaves]
    result = run(*leaves)
    dy = _tensor(*result.shape).to(device)
    want = torch.autograd.grad(result, leaves, dy)
    got = backward(dy, *(leaf.detach() for leaf in leaves))
    for g, w in zip(got if isinstance(got, (tuple, list)) else [got], want, strict=True):
        assert g.dtype == w.dtype and g.device == w.device
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


@devices
def test_group_norm_swish_leaves_out_what_the_mask_does(device: str) -> None:
    x, w, b = (t.to(device) for t in (_tensor(2, 4, 5), _tensor(4), _tensor(4)))
    y, mean, rstd = ops.npu_group_norm_swish(x, 2, w, b)
    arguments = torch.ones_like(y), x, 2, w, b, mean, rstd
    whole = ops.npu_group_norm_swish_grad(*arguments, [True, True, True])
    part = ops.npu_group_norm_swish_grad(*arguments, [False, True, False], 1.0)
    assert part[0] is None and part[2] is None and torch.equal(part[1], whole[1])


def _refused() -> list[Any]:
    x, y, two = torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2)
    like = r"expected grad like \w+, \[2, 3\] of torch.float32, got \[3, 2\]"
    softmax = ops.npu_scaled_masked_softmax_backward
    dropout = ops.npu_dropout_with_add_softmax_backward
    loss = ops.npu_cross_entropy_loss_backward
    swish = ops.npu_group_norm_swish_grad
    target = torch.zeros(2, dtype=torch.int64)
    bits = torch.zeros(16, dtype=torch.uint8)
    return [
        (lambda: ops.npu_gelu_backward(y, x), like),
        (lambda: ops.npu_fast_gelu_backward(y, x), like),
        (lambda: ops.npu_mish_backward(x.half(), x), r"got \[2, 3\] of torch.float16"),
        (lambda: ops.npu_silu_backward(y, x, x), like),
        (lambda: softmax(y, x, x.bool(), 1.0, False), like),
        (lambda: softmax(x, x, x, 1.0, False), "expected mask of dtype bool, got torch.float32"),
        (lambda: softmax(x, x, x.bool(), 1.0, True), "expected fixed_triu_mask False, got True"),
        (lambda: dropout(y, bits, x, 1.0, 0.5, -1), like),
        (
            lambda: dropout(x, bits[:0], x, 1.0, 0.5, -1),
            r"a bit for each of 6 elements, got .*\[0\]",
        ),
        (lambda: dropout(x, bits, x, 1.0, 1.0, -1), r"expected prob in \[0, 1\), got 1"),
        (lambda: dropout(x, bits, x, 1.0, 0.5, 0), "expected dim of the last axis, got 0"),
        (lambda: loss(two, x, target), r"expected grad_loss of shape \[1\], got \[2\]"),
        (lambda: loss(two[:1], x, target[:1]), r"expected target of shape \[2\] .*got \[1\]"),
        (
            lambda: swish(x, x, 2, two, two, x, x, [True] * 3),
            r"expected input \[N, C, ..\] with C in 2 groups, got \[2, 3\]",
        ),
        (
            lambda: swish(y, y, 2, two, two, y[:2], y, [True] * 3),
            r"expected mean of shape \[3, 2\], got \[2, 2\]",
        ),
        (
            lambda: ops.npu_linear_backward(x, x, x),
            r"expected grad of shape \[2, 2\], got \[2, 3\]",
        ),
        (lambda: ops.npu_linear_backward(x, x, y), r"expected input .* got \[2, 3\] and \[3, 2\]"),
        (
            lambda: ops.npu_bmm_v2_mat1_backward(x, x, y, [3, 2]),
            r"expected size of mat1, \[2, 3\], got \[3, 2\]",
        ),
        (
            lambda: ops.npu_bmm_v2_mat2_backward(x, x, y, [3, 2]),
            r"expected grad of the 4 elements of the product, got \[2, 3\]",
        ),
    ]


@pytest.mark.parametrize(("call", "match"), _refused())
def test_bad_arguments_are_refused(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()
