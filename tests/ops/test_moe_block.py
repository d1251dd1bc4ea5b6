"""A mixture-of-experts block of fused operators equals the dense computation in float64.

The block runs as torch calls on both devices, and as an exported file by kernels and by function
bodies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu as npu
import pytest
import torch

TOKENS, HIDDEN, INNER, EXPERTS, SLOTS = 24, 32, 40, 6, 2
CAPACITY = 5  # slots of an expert in the form that drops tokens


class Block(torch.nn.Module):
    """Gating, routing, two grouped matmuls around SwiGLU, and the weighted sum per token."""

    def __init__(self, form: str):
        super().__init__()
        self.form = form
        generator = torch.Generator().manual_seed(3)
        self.up = torch.nn.Parameter(
            torch.randn(EXPERTS, HIDDEN, 2 * INNER, generator=generator) / HIDDEN**0.5
        )
        self.down = torch.nn.Parameter(
            torch.randn(EXPERTS, INNER, HIDDEN, generator=generator) / INNER**0.5
        )

    def _experts(self, rows: torch.Tensor, groups: torch.Tensor, kind: int) -> torch.Tensor:
        def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.ops.npu.npu_grouped_matmul(
                [x], [weight], group_list=groups, group_type=0, group_list_type=kind, split_item=3
            )[0]

        return product(torch.ops.npu.npu_swiglu(product(rows, self.up)), self.down)

    def forward(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.npu
        if self.form == "legacy":
            weights, experts, columns = ops.npu_moe_gating_top_k_softmax(logits, None, SLOTS)
            rows, index, order = ops.npu_moe_init_routing(x, columns, experts, TOKENS)
            ends = ops.npu_moe_compute_expert_tokens(order, EXPERTS).to(torch.int64)
            rows = self._experts(rows, ends, 0)
            return ops.npu_moe_finalize_routing(rows, None, None, None, weights, index, None, 0)
        weights, experts, _ = ops.npu_moe_gating_top_k(logits, SLOTS)
        if self.form == "drop_pad":
            padded, index, _, _ = ops.npu_moe_init_routing_v2(
                x, experts, expert_num=EXPERTS, drop_pad_mode=1, expert_capacity=CAPACITY
            )
            ends = torch.arange(CAPACITY, EXPERTS * CAPACITY + 1, CAPACITY, device=x.device)
            rows = self._experts(padded.reshape(EXPERTS * CAPACITY, HIDDEN), ends, 0)
            rows, mode = rows.reshape(EXPERTS, CAPACITY, HIDDEN), 3
        else:
            rows, index, counts, _ = ops.npu_moe_init_routing_v2(
                x, experts, expert_num=EXPERTS, expert_tokens_num_type=1,
                expert_tokens_num_flag=True,
            )  # fmt: skip
            rows, mode = self._experts(rows, counts, 1), 2
        return ops.npu_moe_finalize_routing(
            rows, None, None, None, weights, index, None, mode, SLOTS
        )


def _dense(block: Block, x: torch.Tensor, logits: torch.Tensor) -> np.ndarray:
    """Compute every token with every expert, in float64."""
    x, up, down = (t.detach().double().numpy() for t in (x, block.up, block.down))
    gates = logits.double().softmax(-1).numpy()
    chosen = np.argsort(-gates, axis=1, kind="stable")[:, :SLOTS]
    hidden = np.einsum("th,ehn->ten", x, up)
    gate, value = np.split(hidden, 2, axis=-1)
    outputs = np.einsum("ten,enh->teh", gate / (1 + np.exp(-gate)) * value, down)
    y, used = np.zeros_like(x), np.zeros(EXPERTS, int)
    for token in range(TOKENS):
        for expert in chosen[token]:
            used[expert] += 1
            if block.form == "drop_pad" and used[expert] > CAPACITY:
                continue
            y[token] += gates[token, expert] * outputs[token, expert]
    return y


def _logits(routing: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator)
    if routing == "idle_experts":  # all tokens choose among three
        logits[:, 3:] -= 100
    elif routing == "one_expert":  # every token has expert 4 first
        logits[:, 4] += 100
    return logits


def _inputs(routing: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(5))
    return x, _logits(routing)


forms = pytest.mark.parametrize("form", ["legacy", "dropless", "drop_pad"])
routings = pytest.mark.parametrize("routing", ["random", "idle_experts", "one_expert"])
# Two products of up to 40 standard normal numbers in float32 against float64.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@forms
@routings
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_the_block_in_torch(form: str, routing: str, device: str) -> None:
    block, (x, logits) = Block(form), _inputs(routing)
    expected = _dense(block, x, logits)
    with torch.no_grad():
        actual = block.to(device)(x.to(device), logits.to(device)).cpu().numpy()
    np.testing.assert_allclose(actual, expected, **TOLERANCE)


@forms
def test_the_block_as_a_file(form: str, tmp_path: Path) -> None:
    block, inputs = Block(form).eval(), _inputs("random")
    path = tmp_path / "block.onnx"
    report = npu.export(block, inputs, path)
    assert report.nodes["npu::NPUGroupedMatmul"] == 2
    assert report.without_body == []
    for provider in ("NPUExecutionProvider", "CPUExecutionProvider"):
        session = ort.InferenceSession(path, providers=[provider])
        names = [i.name for i in session.get_inputs()]
        for routing in ("random", "idle_experts", "one_expert"):
            given = _inputs(routing)
            feeds = {name: t.numpy() for name, t in zip(names, given, strict=True)}
            (actual,) = session.run(None, feeds)
            np.testing.assert_allclose(actual, _dense(block, *given), **TOLERANCE)
