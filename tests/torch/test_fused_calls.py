"""Calls of ``torch.ops.npu`` on npu tensors: one C++ kernel, straight from the dispatcher."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from onnxruntime_npu import _torch, torch_bridge
from onnxruntime_npu.errors import ArgumentError, DeviceError
from onnxruntime_npu.opdef import autograd

npu = torch.ops.npu
BOUND = 128  # kernels cached per operator


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * gamma


def test_fused_kernel_cache_is_bounded_and_stays_correct() -> None:
    x, gamma = torch.randn(3, 8), torch.randn(8)
    there = x.npu(), gamma.npu()
    epsilons = [1e-3 * (1 + i) for i in range(3 * BOUND)]
    made = [npu.npu_rms_norm(*there, epsilon)[0] for epsilon in epsilons]
    assert _torch.kernel_count("NPURmsNorm", "npu") == BOUND
    again = [npu.npu_rms_norm(*there, epsilon)[0] for epsilon in epsilons[:: BOUND // 4]]
    for epsilon, y in zip(epsilons + epsilons[:: BOUND // 4], made + again, strict=True):
        torch.testing.assert_close(y.cpu(), rms_norm(x, gamma, epsilon))


def test_aten_kernel_cache_is_bounded_and_stays_correct() -> None:
    x = torch.randn(3, 8)
    there = x.npu()
    slopes = [0.01 * i for i in range(3 * BOUND)]
    made = [torch.nn.functional.leaky_relu(there, slope) for slope in slopes]
    assert _torch.kernel_count("LeakyRelu", "") == BOUND
    for slope, y in zip(slopes, made, strict=True):
        torch.testing.assert_close(y.cpu(), torch.nn.functional.leaky_relu(x, slope))


def test_threads_share_kernels_during_eviction() -> None:
    x, gamma = torch.randn(3, 8), torch.randn(8)
    there = x.npu(), gamma.npu()

    def work(number: int) -> bool:
        for i in range(2 * BOUND):
            epsilon = 1e-2 * (1 + (i * 7 + number) % (2 * BOUND))
            y = npu.npu_rms_norm(*there, epsilon)[0].cpu()
            if not torch.allclose(y, rms_norm(x, gamma, epsilon), rtol=1e-5, atol=1e-6):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert _torch.kernel_count("NPURmsNorm", "npu") <= BOUND


def test_graph_keeps_an_evicted_kernel_alive() -> None:
    x, gamma = torch.randn(3, 8).npu(), torch.ones(8).npu()
    for i in range(BOUND):
        npu.npu_rms_norm(x, gamma, 10.0 + i)
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = npu.npu_rms_norm(x, gamma, 5.0)[0]
    for i in range(2 * BOUND):
        npu.npu_rms_norm(x, gamma, 1000.0 + i)
    new = torch.randn(3, 8)
    x.copy_(new)
    graph.replay()
    torch.testing.assert_close(y.cpu(), rms_norm(new, torch.ones(8), 5.0))


@pytest.fixture
def no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def entered(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the gradient in Python was entered")

    monkeypatch.setattr(autograd.AutogradKernel, "__call__", entered)


@pytest.mark.no_values
def test_only_calls_with_gradients_enter_python(no_gradients: None) -> None:
    x, gamma = torch.randn(2, 8).npu(), torch.ones(8).npu()
    npu.npu_rms_norm(x, gamma)
    needs = x.detach().requires_grad_()
    with torch.no_grad():
        npu.npu_rms_norm(needs, gamma)
    with torch.inference_mode():
        npu.npu_rms_norm(needs, gamma)
    with pytest.raises(AssertionError, match="was entered"):
        npu.npu_rms_norm(needs, gamma)
    with pytest.raises(AssertionError, match="was entered"):
        npu.npu_rms_norm(x, gamma.detach().requires_grad_())


def test_gradient_matches_cpu() -> None:
    x, gamma = torch.randn(2, 8), torch.randn(8)
    grads = []
    for device in ("cpu", "npu"):
        leaves = [t.to(device).detach().requires_grad_() for t in (x, gamma)]
        y, rstd = npu.npu_rms_norm(*leaves)
        assert y.requires_grad and not rstd.requires_grad
        (y * y).sum().backward()
        grads.append([t.grad.cpu() for t in leaves])
    torch.testing.assert_close(grads[0], grads[1])


def _error(function: Any, *args: Any, **kwargs: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:
        function(*args, **kwargs)
        torch.npu.synchronize()
    return caught.type, str(caught.value)


X, GAMMA = torch.randn(2, 8), torch.randn(8)


@pytest.mark.no_values
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("npu_rms_norm", (X.int(), GAMMA)),
        ("npu_rms_norm", (X.cfloat(), GAMMA)),
        ("npu_rms_norm", (X.to(torch.float8_e5m2), GAMMA)),
        ("npu_rms_norm", (X, GAMMA[:7])),
        ("npu_rms_norm", (X, None)),
        ("npu_rms_norm", (X,)),
        ("npu_rms_norm", (X, GAMMA, "small")),
        ("npu_swiglu", (X[:, :7],)),
        ("npu_swiglu", (X, 7)),
        ("npu_gelu", (X,)),
        ("npu_rotary_mul", (X[None, None], X[None, None], X[None, None], "NOPE")),
        ("npu_scaled_masked_softmax", (X[None, None], X[None, None] > 0, 1j)),
        ("npu_layer_norm_eval", (X, [7])),
        ("npu_scatter_nd_update_", (X, torch.tensor([[0.5]]), X[:1])),
    ],
)
def test_errors_match_cpu(name: str, args: tuple[Any, ...]) -> None:
    keywords = {"approximate": "NOPE"} if name == "npu_gelu" else {}
    there = [a.npu() if isinstance(a, torch.Tensor) else a for a in args]
    here = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    want = _error(getattr(npu, name), *here, **keywords)
    assert _error(getattr(npu, name), *there, **keywords) == want


@pytest.mark.no_values
@pytest.mark.parametrize("at", [0, 1])
def test_tensors_on_two_devices_are_refused(at: int) -> None:
    tensors = [X, GAMMA]
    tensors[1 - at] = tensors[1 - at].npu()
    what = ("self", "gamma")[at]
    message = (
        f"[npu_rms_norm] expected {what} on npu:0 like the other tensors, got cpu: Expected all "
        "tensors to be on the same device, but found at least two devices, npu:0 and cpu!"
    )
    assert _error(npu.npu_rms_norm, *tensors) == (ArgumentError, message)


def test_device_stays_usable_after_a_kernel_failure() -> None:
    table = torch.zeros(3, 2).npu()
    with pytest.raises(DeviceError, match=re.escape("[npu_scatter_nd_update]")):
        npu.npu_scatter_nd_update(table, torch.tensor([[7]]).npu(), torch.ones(1, 2).npu())
        torch.npu.synchronize()
    out = npu.npu_scatter_nd_update(table, torch.tensor([[1]]).npu(), torch.ones(1, 2).npu())
    assert torch.equal(out.cpu()[1], torch.ones(2))


def test_in_place_call_on_a_view_updates_its_base_and_returns_it() -> None:
    base = torch.zeros(4, 6).npu()
    view = base.t()[1:3]
    version = base._version
    out = npu.npu_scatter_nd_update_(view, torch.tensor([[1]]).npu(), torch.ones(1, 4).npu())
    assert out is view and base._version > version
    assert torch.equal(base.cpu()[:, 2], torch.ones(4)) and base.sum() == 4


@pytest.mark.no_values
def test_saved_tensor_must_not_be_written() -> None:
    x = torch.randn(2, 8).npu().requires_grad_()
    y = x * 2
    loss = (y * y).sum()
    with torch.no_grad():
        npu.npu_silu_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        npu.npu_silu_(x)


def test_non_contiguous_inputs() -> None:
    x, gamma = torch.randn(8, 6).t(), torch.randn(16)[::2]
    got = npu.npu_rms_norm(x.npu(), torch.randn(16).npu().copy_(gamma.repeat_interleave(2))[::2])
    torch.testing.assert_close([t.cpu() for t in got], list(npu.npu_rms_norm(x, gamma)))


def test_absent_inputs_and_empty_outputs() -> None:
    logits = torch.randn(2, 16)
    k = torch.tensor([3, 5], dtype=torch.int32)
    want = npu.npu_top_k_top_p(logits, k=k)
    assert torch.equal(npu.npu_top_k_top_p(logits.npu(), k=k.npu()).cpu(), want)
    y, rstd = npu.npu_rms_norm(torch.empty(0, 8).npu(), GAMMA.npu())
    assert y.shape == (0, 8) and rstd.shape == (0, 1) and y.device.type == "npu"


@pytest.mark.no_values
def test_operator_without_results_returns_none() -> None:
    assert npu.npu_prefetch(X.npu(), None, 16) is None


def test_host_computed_results_are_returned() -> None:
    q = torch.randn(1, 4, 2, 16)
    want = npu.npu_fusion_attention(q, q, q, 2, "BSND", keep_prob=0.5, seed=7, offset=3)
    got = npu.npu_fusion_attention(*[q.npu()] * 3, 2, "BSND", keep_prob=0.5, seed=7, offset=3)
    assert got[4:] == want[4:] and got[4:6] == (7, 3)
    torch.testing.assert_close(got[0].cpu(), want[0])
    drawn = npu.npu_fusion_attention(*[q.npu()] * 3, 2, "BSND", keep_prob=0.5)
    assert drawn[4] != 0


@pytest.mark.no_values
def test_preset_results_apply_to_one_call_only() -> None:
    x, gamma = X.npu(), GAMMA.npu()
    y, rstd = npu.npu_rms_norm(x, gamma)
    results = [torch.zeros_like(y), torch.zeros_like(rstd)]
    with torch_bridge.next_call_given(results):
        first = npu.npu_rms_norm(x, gamma)
        second = npu.npu_rms_norm(x, gamma)
    assert first[0].data_ptr() == results[0].data_ptr() != second[0].data_ptr()
    assert torch.equal(results[0].cpu(), y.cpu())
    with pytest.raises(ArgumentError, match="as it was captured"):  # noqa: SIM117
        with torch_bridge.next_call_given([torch.zeros(7).npu(), rstd]):
            npu.npu_rms_norm(x, gamma)
    with torch_bridge.next_call_given(results):
        pass
    assert npu.npu_rms_norm(x, gamma)[0].data_ptr() != results[0].data_ptr()
