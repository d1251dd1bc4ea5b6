"""Routed experts as torch.onnx's own exporter writes those of transformers become one operator."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from fusion_models import fused_nodes, without_optimizations
from provider_models import CPU, npu_session
from torch import nn
from transformers import MixtralConfig, Qwen2MoeConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

HIDDEN = 32
MOE = "com.microsoft:MoE"
# From the Softmax of the router to the sum. Two are those of the division by the sum of the shares,
# which Qwen's can leave out.
NODES = 26


def block(kind: str, normalized: bool = True) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module
    if kind == "mixtral":
        config = MixtralConfig(
            hidden_size=HIDDEN, intermediate_size=48, num_local_experts=5, num_experts_per_tok=2
        )
        config._experts_implementation = "batched_mm"
        made = MixtralSparseMoeBlock(config)
    else:
        other = Qwen2MoeConfig(
            hidden_size=HIDDEN, moe_intermediate_size=24, shared_expert_intermediate_size=40,
            num_experts=6, num_experts_per_tok=3, norm_topk_prob=normalized,
        )  # fmt: skip
        other._experts_implementation = "batched_mm"
        made = Qwen2MoeSparseMoeBlock(other)
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0, 0.2)
    return made.eval()


def exported(module: nn.Module, dtype: torch.dtype = torch.float32) -> onnx.ModelProto:
    axes = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("s", min=2, max=64)}
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.randn(2, 8, HIDDEN, dtype=dtype)
        program = torch.onnx.export(
            module.to(dtype), (given,), dynamo=True, verbose=False, dynamic_shapes=(axes,)
        )
    program.save(file)
    return onnx.load_from_string(file.getvalue())


@pytest.fixture(scope="module")
def mixtral() -> onnx.ModelProto:
    """An export takes seconds."""
    return exported(block("mixtral"))


def check(model: onnx.ModelProto, tolerance: float, dtype=np.float32) -> dict[str, str]:
    """Compare with the CPU provider; returns the fused operator by node."""
    serialized = model.SerializeToString()
    name = model.graph.input[0].name
    session = npu_session(serialized)
    plain = npu_session(serialized, without_optimizations(), fusion=0)
    assert fused_nodes(plain) == {}
    cpu = ort.InferenceSession(serialized, providers=[CPU])
    rng = np.random.default_rng(3)
    for shape in [(2, 8), (3, 5), (5, 2)]:
        feeds = {name: rng.normal(size=(*shape, HIDDEN)).astype(dtype)}
        (wanted,) = cpu.run(None, feeds)
        assert np.ptp(wanted) > 1
        for each in (session, plain):
            (got,) = each.run(None, feeds)
            assert got.dtype == dtype
            near = tolerance * np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=near)
    return {node: kind for node, kind in fused_nodes(session).items() if kind == MOE}


# Two products of up to 48 terms in other orders.
@pytest.mark.parametrize("optimized", [True, False])
def test_mixtral(mixtral, optimized):
    groups = check(mixtral, 1e-5)
    if not optimized:
        session = npu_session(mixtral.SerializeToString(), without_optimizations())
        groups = {n: kind for n, kind in fused_nodes(session).items() if kind == MOE}
    by_name = {n.name: n.op_type for n in mixtral.graph.node}
    assert {"TopK", "GatherND", "MatMul", "Split", "ReduceSum"} <= {by_name[n] for n in groups}
    assert len(groups) == NODES


@pytest.mark.parametrize("normalized", [True, False])
def test_qwen_with_a_shared_expert(normalized):
    groups = check(exported(block("qwen", normalized)), 1e-5)
    assert len(groups) == NODES - (0 if normalized else 2)


def test_experts_of_16_bits():
    """Shares in float32, between two Cast."""
    # Onnxruntime's CPU rounds to float16 after each of ten operators.
    groups = check(exported(block("mixtral"), torch.float16), 1e-2, np.float16)
    assert len(groups) >= NODES


def test_shares_that_are_rounded_before_the_best_are_chosen():
    """Of equal ones TopK takes the first, where their logits may differ."""
    assert check(exported(block("qwen"), torch.float16), 1e-2, np.float16) == {}


def changed(model: onnx.ModelProto, op: str, change) -> onnx.ModelProto:
    """A copy, in which `change` has been applied to the first node of a type."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    node = next(n for n in out.graph.node if n.op_type == op)
    change(out.graph, node)
    return out


def add_output(graph, node) -> None:
    """Its second result is one of the model, too."""
    graph.output.append(onnx.helper.make_tensor_value_info(node.output[-1], 7, None))


def smallest(graph, node) -> None:
    for attribute in node.attribute:
        if attribute.name == "largest":
            attribute.i = 0


def other_gate(graph, node) -> None:
    node.op_type = "Tanh"


def swap_halves(graph, node) -> None:
    node.output[0], node.output[1] = node.output[1], node.output[0]


def another_axis(graph, node) -> None:
    for attribute in node.attribute:
        if attribute.name == "axis":
            attribute.i = 0


@pytest.mark.parametrize("op, change", [
    ("TopK", smallest), ("TopK", add_output), ("Sigmoid", other_gate), ("Split", swap_halves),
    ("Softmax", another_axis),
], ids=["smallest", "read elsewhere", "another gate", "halves", "axis"])  # fmt: skip
def test_other_meanings_are_left_alone(mixtral, op, change):
    model = changed(mixtral, op, change).SerializeToString()
    session = npu_session(model, without_optimizations())
    assert MOE not in fused_nodes(session).values()
    name = session.get_inputs()[0].name
    feeds = {name: np.random.default_rng(4).normal(size=(2, 3, HIDDEN)).astype(np.float32)}
    wanted = ort.InferenceSession(model, providers=[CPU]).run(None, feeds)
    for got, expected in zip(session.run(None, feeds), wanted, strict=True):
        # Sums of float32 in another order.
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_model_has_them(mixtral, tmp_path: Path):
    onnx.save(mixtral, tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "compiled.onnx"))
    first = ort.InferenceSession(
        tmp_path / "model.onnx", options, providers=["NPUExecutionProvider"]
    )
    again = ort.InferenceSession(tmp_path / "compiled.onnx", providers=["NPUExecutionProvider"])
    assert MOE in fused_nodes(again).values()
    x = np.random.default_rng(5).normal(size=(2, 3, HIDDEN)).astype(np.float32)
    results = [s.run(None, {s.get_inputs()[0].name: x})[0] for s in (first, again)]
    np.testing.assert_array_equal(*results)
