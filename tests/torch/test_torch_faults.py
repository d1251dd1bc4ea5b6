"""Failing backend calls while torch copies, computes, captures and trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime_npu  # noqa: F401
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "provider"))
import fault_trials

HOST = torch.arange(512 * 64, dtype=torch.float32).reshape(512, 64) / 4096


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def operators() -> Callable[[], Any]:
    weight = torch.sin(torch.arange(64.0 * 32)).reshape(64, 32)
    expected = torch.softmax((HOST + HOST.flip(1)) @ weight, 1).t()

    def work() -> None:
        x, w = HOST.npu(), weight.npu()
        y = torch.softmax((x + x.flip(1)) @ w, 1).t()
        total = y.sum().item()
        assert abs(total - 512) < 1
        same(y.contiguous().cpu(), expected)

    return work


def copies() -> Callable[[], Any]:
    def work() -> None:
        small = HOST[:4].npu()
        large = HOST.npu()
        turned = HOST.t().npu()
        half = HOST.to("npu", torch.float16)
        zeros = torch.zeros_like(large)
        filled = torch.full_like(small, 3.0)
        same(small.cpu(), HOST[:4])
        same(large.cpu(), HOST)
        same(turned.cpu(), HOST.t())
        same(half.float().cpu(), HOST.half().float())
        same((zeros + 1).cpu(), torch.ones_like(HOST))
        same(filled.cpu(), torch.full_like(HOST[:4], 3.0))

    return work


def pinned_copies() -> Callable[[], Any]:
    def work() -> None:
        source = HOST.pin_memory()
        x = source.to("npu", non_blocking=True)
        target = torch.empty_like(HOST).pin_memory()
        target.copy_(x * 2, non_blocking=True)
        torch.npu.current_stream().synchronize()
        same(target, HOST * 2)

    return work


def side_streams() -> Callable[[], Any]:
    side = torch.npu.Stream()

    def work() -> None:
        x = HOST.npu()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = x * 2
            x.record_stream(side)
            done = torch.npu.Event()
            done.record()
        del x
        torch.npu.current_stream().wait_event(done)
        y.record_stream(torch.npu.current_stream())
        z = y + 1
        del y
        done.synchronize()
        same(z.cpu(), HOST * 2 + 1)
        torch.npu.synchronize()

    return work


def graphs() -> Callable[[], Any]:
    side = torch.npu.Stream()

    def work() -> None:
        x = HOST.npu()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = x * 2
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                z = x + 1
            torch.npu.current_stream().wait_stream(side)
            result = y * z
        graph.replay()
        same(result.cpu(), HOST * 2 * (HOST + 1))
        x.copy_(HOST / 2)
        graph.replay()
        same(result.cpu(), HOST * (HOST / 2 + 1))
        graph.reset()

    return work


def replays() -> Callable[[], Any]:
    x = HOST.npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = torch.relu(x) * 2

    def work() -> None:
        for scale in (1, 3):
            x.copy_(HOST * scale)
            graph.replay()
            same(y.cpu(), HOST * scale * 2)

    return work


def training() -> Callable[[], Any]:
    torch.manual_seed(0)
    weight = torch.randn(64, 8)

    def step(device: str) -> torch.Tensor:
        layer = torch.nn.Linear(64, 8, bias=False, device=device)
        with torch.no_grad():
            layer.weight.copy_(weight.t())
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        loss = torch.nn.functional.gelu(layer(HOST[:32].to(device))).square().mean()
        loss.backward()
        optimizer.step()
        return layer.weight.detach().cpu()

    expected = step("cpu")
    return lambda: same(step("npu"), expected)


SCENARIOS = {
    f.__name__: f
    for f in (operators, copies, pinned_copies, side_streams, graphs, replays, training)
}


def test_every_injected_fault_is_reported_and_recovered():
    """In one process, which imports torch once; a failure's output names its scenario."""
    fault_trials.in_a_process(__file__, *SCENARIOS)


if __name__ == "__main__":
    fault_trials.main(SCENARIOS)
