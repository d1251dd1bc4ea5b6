"""Names beside operators that consist of standard ones: gradients, and what writes in place."""

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


def _gradients(run: Callable[..., Any], grad: torch.Tensor, *leaves: torch.Tensor) -> Any:
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    return torch.autograd.grad(run(*leaves), leaves, grad)


def _same(got: Any, want: Any) -> None:
    """Autograd calls the same kernels: the bits are the same."""
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=0, atol=0)


@devices
@pytest.mark.parametrize(
    ("name", "axes", "padding"),
    [
        ("npu_conv2d", 2, [1, 0]),
        ("npu_conv2d", 2, [1, 0, 2, 1]),
        ("npu_convolution", 2, [0, 1]),
        ("npu_conv3d", 3, [1, 0, 1]),
    ],
)
def test_gradients_of_convolutions(name: str, axes: int, padding: list[int], device: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 4, *[5] * axes, device=device)
    weight = torch.randn(6, 2, *[2] * axes, device=device)
    bias = torch.randn(6, device=device)
    how = [2, *[1] * (axes - 1)], padding, [1] * axes, 2
    run = getattr(ops, name)
    grad = torch.randn_like(run(x, weight, bias, *how))
    want = _gradients(lambda *leaves: run(*leaves, *how), grad, x, weight, bias)
    backward = getattr(ops, f"{name}_backward")
    got = backward(x, grad, weight, *how, [True, True, True])
    _same(got, want)
    masked = backward(x, grad, weight, *how, [False, True, False])
    _same(masked[1:2], want[1:2])
    assert masked[0] is None and masked[2] is None


@devices
@pytest.mark.parametrize("name", ["npu_conv_transpose2d", "npu_convolution_transpose"])
def test_gradients_of_transposed_convolutions(name: str, device: str) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(2, 4, 5, 4, device=device), torch.randn(4, 3, 3, 2, device=device)
    bias = torch.randn(6, device=device)
    how = [1, 0], [1, 0], [2, 1], [1, 1], 2
    run = getattr(ops, name)
    grad = torch.randn_like(run(x, weight, bias, *how))
    want = _gradients(lambda *leaves: run(*leaves, *how), grad, x, weight, bias)
    got = getattr(ops, f"{name}_backward")(x, grad, weight, *how, [True, True, True])
    _same(got, want)


@devices
@pytest.mark.parametrize("name", ["npu_max", "npu_min"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients_of_extremes(name: str, keepdim: bool, device: str) -> None:
    x = torch.randn(3, 5, device=device)
    values, places = getattr(ops, name)(x, 1, keepdim)
    grad = torch.randn_like(values)
    want = _gradients(lambda leaf: getattr(ops, name)(leaf, 1, keepdim)[0], grad, x)
    _same([getattr(ops, f"{name}_backward")(grad, 1, places, [3, 5], keepdim)], want)


@devices
@pytest.mark.parametrize("first", [False, True])
def test_gradient_of_confusion_transpose(first: bool, device: str) -> None:
    x = torch.randn(2, 3, 4, device=device)
    how = ([2, 0, 1], [4, 6], True) if first else ([1, 0], [4, 6], False)
    grad = torch.randn_like(ops.npu_confusion_transpose(x, *how))
    want = _gradients(lambda leaf: ops.npu_confusion_transpose(leaf, *how), grad, x)
    shape = x.shape if first else how[1]
    got = ops.npu_confusion_transpose_backward(grad, how[0], shape, first)
    _same([got.reshape(x.shape)], want)


@devices
def test_casts_of_other_names(device: str) -> None:
    x = torch.tensor([1.5, -2.5], device=device)
    assert ops._npu_dtype_cast(x, torch.int32).tolist() == [1, -2]
    target = torch.zeros(2, dtype=torch.int32, device=device)
    assert ops.npu_dtype_cast_(target, x) is target and target.tolist() == [1, -2]
    assert ops.npu_dtype_cast_backward(x, torch.float16).dtype == torch.float16
    with pytest.raises(ArgumentError, match=r"\[npu_dtype_cast_\] expected src of shape \[2\]"):
        ops.npu_dtype_cast_(target, x[:1])


@devices
@pytest.mark.parametrize("name", ["npu_max", "npu_min", "npu_sort_v2"])
def test_an_axis_out_of_range_is_an_index_error(name: str, device: str) -> None:
    with pytest.raises(IndexError, match=rf"\[{name}\] expected dim in \[-2, 1\], got -3"):
        getattr(ops, name)(torch.ones(2, 3, device=device), -3)


def _state(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.full((3,), v, dtype=dtype, device=device) for v in (1.0, 0.1, 0.2, 0.5)]


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("nesterov", "var"), [(None, 0.99901017), (True, 0.99875565)])
def test_apply_adam_updates_in_place(nesterov, var, dtype, device) -> None:
    *out, grad = _state(device, dtype)
    got = ops.npu_apply_adam(0.9, 0.999, 0.01, 0.9, 0.999, 1e-8, grad, None, nesterov, out=out)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    for result, target, want in zip(got, out, (var, 0.14, 0.20005), strict=True):
        assert result is target
        torch.testing.assert_close(
            target.float().cpu(), torch.full((3,), want), rtol=tolerance, atol=tolerance
        )


def test_apply_adam_with_powers_of_one_has_no_finite_step() -> None:
    *out, grad = _state("cpu", torch.float32)
    ops.npu_apply_adam(1, 1, 0.01, 0.9, 0.999, 1e-8, grad, False, False, out=tuple(out))
    assert not out[0].isfinite().any()
    torch.testing.assert_close(out[2], torch.full((3,), 0.20005))


@devices
@pytest.mark.parametrize("mode", [0, 1])
def test_bert_apply_adam_updates_in_place(mode: int, device: str) -> None:
    *out, grad = _state(device, torch.float32)
    how = 0.01, 0.9, 0.999, 1e-8, grad, 0, 0.0, 0.1, None, mode
    got = ops.npu_bert_apply_adam(*how, out=out)
    for result, target, want in zip(got, out, (0.99586990, 0.14, 0.20005), strict=True):
        assert result is target
        torch.testing.assert_close(target.cpu(), torch.full((3,), want))


def test_bert_apply_adam_clips_by_the_global_norm() -> None:
    *out, grad = _state("cpu", torch.float32)
    ops.npu_bert_apply_adam(0.01, 0.9, 0.999, 1e-8, grad, 1.0, 5.0, 0.0, out=out)
    torch.testing.assert_close(out[1], torch.full((3,), 0.9 * 0.1 + 0.1 * 0.1))


def test_adam_refuses_what_it_cannot_update() -> None:
    *out, grad = _state("cpu", torch.float32)
    plain = 0.9, 0.999, 0.01, 0.9, 0.999, 1e-8, grad, None, None
    with pytest.raises(ArgumentError, match=r"\[npu_apply_adam\] expected out=\(var, m, v\)"):
        ops.npu_apply_adam(*plain)
    with pytest.raises(ArgumentError, match=r"\[npu_apply_adam\] expected out of var, m and v"):
        ops.npu_apply_adam(*plain, out=out[:2])
    with pytest.raises(ArgumentError, match=r"\[npu_apply_adam\] expected m like grad, .*\[1\]"):
        ops.npu_apply_adam(*plain, out=[out[0], out[1][:1], out[2]])
    with pytest.raises(ArgumentError, match=r"\[npu_bert_apply_adam\] expected out=\(var, m, v\)"):
        ops.npu_bert_apply_adam(0.01, 0.9, 0.999, 1e-8, grad, 0, 0, 0)
    assert torch.equal(out[0], torch.ones(3))


@pytest.mark.skipif("npu" not in DEVICES, reason="this build has no torch device")
def test_copy_memory_copies_in_the_order_of_memory() -> None:
    source = torch.arange(6).npu().reshape(2, 3)
    target = torch.zeros(3, 2, dtype=torch.int64).npu()
    assert ops.copy_memory_(target, source.t()) is target
    assert target.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.skipif("npu" not in DEVICES, reason="this build has no torch device")
def test_copy_memory_refuses_other_memory() -> None:
    source = torch.arange(6).npu().reshape(2, 3)
    target = torch.zeros(3, 2, dtype=torch.int64).npu()
    for wrong, message in (
        (source.cpu(), "on one npu, got npu:0 and cpu"),
        (source.int(), "the dtype of self, torch.int64, got torch.int32"),
        (source[0].clone(), "src with 6 elements in memory, got 3"),
    ):
        with pytest.raises(ArgumentError, match=rf"\[copy_memory_\] expected .*{message}"):
            ops.copy_memory_(target, wrong)
