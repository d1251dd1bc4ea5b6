"""Nodes as torch_npu's exporter writes them: no bodies, its op types, attributes and placeholders.

Every row is one kind of node that it emits (torch_npu's test_wrapper_onnx_ops makes the same calls,
with larger tensors); booleans are integers, absent tensors are constants, and values between nodes
have no types. Its symbolic functions of npu_prompt_flash_attention and
npu_incre_flash_attention name an undefined ``self`` and raise, so that no file has these nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu.opdef import all_ops
from op_paths import NPU, assert_on_npu, session, to_ortvalue, to_torch
from upstream_nodes import Row, check_node

_GENERATOR = torch.Generator().manual_seed(7)


def _half(*shape: int) -> torch.Tensor:
    return _float(*shape).half()


def _float(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def _rows() -> list[Row]:
    x = _half(10, 256)
    gamma = _half(256)
    image = _half(2, 6, 5, 7)
    empty = np.zeros(0, np.float16)
    ones, zeros = np.ones(6, np.float16), np.zeros(6, np.float16)
    return [
        Row("NPUFastGelu", "npu_fast_gelu", {"self": _float(2)}),
        Row(
            "NPUGeGlu",
            "npu_geglu",
            {"self": _half(2, 10, 256)},
            {"dim": -1, "approximate": 1, "activate_left": 0},
            2,
        ),
        Row(
            "NPUGroupNormSilu",
            "npu_group_norm_silu",
            {"self": image, "gamma": _half(6), "beta": _half(6)},
            {"group": 2, "eps": 1e-5},
            3,
        ),
        Row(
            "NPUGroupNormSilu",
            "npu_group_norm_silu",
            {"self": image, "gamma": ones, "beta": zeros},
            {"group": 2, "eps": 1e-5},
            3,
            id="absent_weights",
        ),
        Row(
            "NPUGroupNormSilu",
            "npu_group_norm_silu",
            {
                "self": image.float(),
                "gamma": ones.astype(np.float32),
                "beta": zeros.astype(np.float32),
            },
            {"group": 3, "eps": 1e-5},
            3,
            id="absent_weights_float32",
        ),
        Row(
            "NPUGroupNormSilu",
            "npu_group_norm_silu",
            {"self": image, "gamma": empty, "beta": empty.copy()},
            {"group": 2, "eps": 1e-5},
            3,
            id="absent_weights_empty",
        ),
        Row(
            "NPUDeepNorm",
            "npu_deep_norm",
            {
                "x": _float(10, 256),
                "gx": _float(10, 256),
                "beta": _float(256),
                "gamma": _float(256),
            },
            {"alpha": 0.3, "epsilon": 1e-6},
            3,
        ),
        Row("NPURmsNorm", "npu_rms_norm", {"self": x, "gamma": gamma}, {"epsilon": 1e-6}, 2),
        Row(
            "NPURmsNorm",
            "npu_add_rms_norm",
            {"x1": x, "x2": _half(10, 256), "gamma": gamma},
            {"epsilon": 1e-6},
            3,
        ),
        Row(
            "NPUScatterNdUpdate",
            "npu_scatter_nd_update",
            {
                "self": _float(24, 8),
                "indices": torch.tensor([[1], [5], [0]]),
                "updates": _float(3, 8),
            },
        ),
        Row(
            "NPUScaledMaskedSoftmax",
            "npu_scaled_masked_softmax",
            {"x": _float(4, 3, 64, 64), "mask": _float(4, 3, 64, 64) > 0},
            {"scale": 0.56, "fixed_triu_mask": 0},
        ),
        Row(
            "NPUDropoutWithAddSoftmax",
            "npu_dropout_with_add_softmax",
            {"self": _float(4, 3, 64, 64), "x1": _float(4, 3, 64, 64)},
            {"alpha": 0.1, "prob": 0.0, "dim": -1},
            3,
        ),
        Row(
            "NPUFusedAttentionScore",
            "npu_fused_attention_score",
            {
                **{f"{name}_layer": _half(2, 4, 32, 64) for name in ("query", "key", "value")},
                "attention_mask": _half(2, 1, 32, 32),
            },
            {
                "keep_prob": 1.0,
                "scale": 0.125,
                **{f"{name}_transpose": 0 for name in ("query", "key", "value", "dx")},
                "bmm_score_transpose_a": 0,
                "bmm_score_transpose_b": 0,
            },
        ),
        Row("NPUMish", "npu_mish", {"self": _float(5, 5)}),
        Row(
            "NPURotaryMul",
            "npu_rotary_mul",
            {
                "self": _float(64, 2, 5, 128),
                "r1": _float(64, 1, 1, 128),
                "r2": _float(64, 1, 1, 128),
            },
            {"rotary_mode": "half"},
        ),
        Row("NPUGeluV2", "npu_gelu", {"x": _half(2, 5)}, {"approximate": "none"}),
        _dynamic_quant("NPUDynamicQuant", "absent_optionals", {}),
        _dynamic_quant("NPUDynamicQuant", "smooth_scales", {"smooth_scales": _half(64)}),
        _dynamic_quant("NPUDynamicQuant", "groups", _groups()),
        _dynamic_quant("NPUDynamicQuant", "int4", {"smooth_scales": _half(64)}, dst_type=3),
        _dynamic_quant("NPUDynamicQuantV2", "absent_optionals", {}),
        _dynamic_quant("NPUDynamicQuantV2", "groups", _groups()),
        Row(
            "NPUAntiQuant",
            "npu_anti_quant",
            {"x": _int8(10, 1), "scale": _float(1), "offset": _float(1)},
            {"dst_dtype": 1, "src_dtype": 2},
        ),
        Row(
            "NPUAntiQuant",
            "npu_anti_quant",
            {"x": _int8(10, 16), "scale": _float(16), "offset": np.zeros(0, np.float32)},
            {"dst_dtype": 1, "src_dtype": 2},
            id="absent_offset",
        ),
        Row(
            "NPUQuantize",
            "npu_quantize",
            {"inputs": _float(5, 16, 8), "scales": _scales(8), "zero_points": _int8(8).int()},
            {"axis": 2, "div_mode": 1, "dtype": 4},
        ),
        Row(
            "NPUQuantize",
            "npu_quantize",
            {"inputs": _float(5, 16, 8), "scales": _scales(16), "zero_points": _int8(16).int()},
            {"axis": 1, "div_mode": 1, "dtype": 3},
            id="int32",
        ),
        Row(
            "NPUGroupQuant",
            "npu_group_quant",
            {
                "x": _float(6, 4),
                "scale": _float(4, 4),
                "group_index": torch.tensor([1, 4, 6, 6], dtype=torch.int32),
                "offset": _float(),
            },
            {"dst_type": 2},
        ),
        _weight_quant("channels", _half(16) / 64),
        _weight_quant("groups", _half(2, 16) / 64, {"antiquant_offset": _half(2, 16)}, group=32),
        _weight_quant("quantised", _half(16) / 64, {"quant_scale": _float(16)}, dtype=2),
        Row(
            "NPUMoeComputeExpertTokens",
            "npu_moe_compute_expert_tokens",
            {"sorted_experts": _experts(40).sort().values},
            {"num_experts": 7},
        ),
        _finalize("NPUMoeFinalizeRouting", _FINALIZE, {}, id="v1"),
        _finalize(
            "NPUMoeFinalizeRouting", _FINALIZE, {"skip2": np.zeros(0, np.float32)}, id="no_skip2"
        ),
        *(
            _finalize(
                "NPUMoeFinalizeRoutingV2",
                _FINALIZE_V2,
                {},
                {"drop_pad_mode": mode},
                id=f"v2_mode{mode}",
            )
            for mode in range(4)
        ),
        _finalize(
            "NPUMoeFinalizeRoutingV2",
            _FINALIZE_V2,
            {
                "skip1": np.zeros((10, 12), np.float32),
                "skip2": np.zeros((10, 12), np.float32),
                "bias": np.zeros((1, 12), np.float32),
                "export_for_source_row": np.zeros((10, 4), np.int32),
            },
            {"drop_pad_mode": 0},
            id="v2_absent_tensors",
        ),
        _block(_half(32), softmax_use_float=1),
        _block(np.zeros(0, np.float32), softmax_use_float=1),
        _block(np.zeros(0, np.float32), softmax_use_float=0),
    ]


def _int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=_GENERATOR).to(torch.int8)


_FINALIZE = (
    "expanded_permuted_rows",
    "skip1",
    "skip2",
    "bias",
    "scales",
    "expanded_src_to_dst_row",
    "export_for_source_row",
)
_FINALIZE_V2 = (_FINALIZE[0], _FINALIZE[5], *_FINALIZE[1:5], _FINALIZE[6])


def _finalize(
    op_type: str,
    order: tuple[str, ...],
    absent: Mapping[str, np.ndarray],
    attributes: Mapping[str, int] | None = None,
    id: str = "",
) -> Row:
    """Return a row whose inputs come in the order of its op type."""
    tokens, slots, width = 10, 4, 12
    pads = (attributes or {}).get("drop_pad_mode", 0) % 2
    rows = (8, 5, width) if pads else (tokens * slots, width)
    given = {
        "expanded_permuted_rows": _float(*rows),
        "skip1": _float(tokens, width),
        "skip2": _float(tokens, width),
        "bias": _float(8, width),
        "scales": _float(tokens, slots),
        "expanded_src_to_dst_row": torch.randperm(40, generator=_GENERATOR).int(),
        "export_for_source_row": _experts(tokens, slots),
    }
    inputs = {name: absent.get(name, given[name]) for name in order}
    return Row(op_type, "npu_moe_finalize_routing", inputs, attributes or {}, id=id)


def _experts(*shape: int) -> torch.Tensor:
    return torch.randint(0, 8, shape, generator=_GENERATOR).to(torch.int32)


def _scales(n: int) -> torch.Tensor:
    return torch.rand(n, generator=_GENERATOR) / 20 + 0.01


def _groups() -> dict[str, torch.Tensor]:
    ends = torch.tensor([2, 9, 40], dtype=torch.int32)
    return {"smooth_scales": _half(3, 64), "group_index": ends}


def _dynamic_quant(
    op_type: str, id: str, given: Mapping[str, torch.Tensor], dst_type: int = 2
) -> Row:
    """Return a row in which a constant without elements stands for an absent tensor."""
    absent = {"smooth_scales": np.zeros(0, np.float16), "group_index": np.zeros(0, np.int32)}
    inputs = {"input": _half(4, 10, 64), **absent, **given}
    op, outputs = {
        "NPUDynamicQuant": ("npu_dynamic_quant", 2),
        "NPUDynamicQuantV2": ("npu_dynamic_quant_asymmetric", 3),
    }[op_type]
    return Row(op_type, op, inputs, {"dst_type": dst_type}, outputs, id)


def _weight_quant(
    id: str,
    scale: torch.Tensor,
    given: Mapping[str, torch.Tensor] | None = None,
    group: int = 0,
    dtype: int = 1,
) -> Row:
    """Return a row whose attribute dtype says what the inputs tell, and is not the operator's."""
    optional = ("antiquant_offset", "quant_scale", "quant_offset", "bias")
    absent = {name: np.zeros(0, np.float32) for name in optional}
    inputs = {"x": _half(5, 64), "weight": _int8(64, 16), "antiquant_scale": scale}
    return Row(
        "NPUWeightQuantBatchMatmulV2",
        "npu_weight_quant_batchmatmul",
        {**inputs, **absent, **(given or {})},
        {"antiquant_group_size": group, "dtype": dtype},
        id=id,
    )


def _block(bias: torch.Tensor | np.ndarray, softmax_use_float: int) -> Row:
    batch, heads, size, rows, keys = 2, 2, 16, 3, 5
    width = heads * size
    inputs = {
        "query": _half(batch * rows, width),
        "key": _half(batch * keys, width),
        "value": _half(batch * keys, width),
        **{f"{name}_weight": _half(width, width) / 8 for name in ("query", "key", "value")},
        "attn_mask": _half(batch, 1, rows, keys),
        "out_proj_weight": _half(width, width) / 8,
        **{f"{name}_bias": copy.copy(bias) for name in ("query", "key", "value", "out_proj")},
        "dropout_mask": torch.full(((batch * heads * rows * keys + 7) // 8,), 255).byte(),
    }
    attributes = {
        "attn_head_num": heads,
        "attn_dim_per_head": size,
        "src_len": keys,
        "tgt_len": rows,
        "dropout_prob": 0.0,
        "softmax_use_float": softmax_use_float,
    }
    biases = "bias" if isinstance(bias, torch.Tensor) else "empty_bias"
    id = f"{biases}-softmax_{'in_float' if softmax_use_float else 'in_dtype'}"
    return Row("NPUMultiHeadAttention", "npu_multi_head_attention", inputs, attributes, 8, id)


ROWS = _rows()
rows = pytest.mark.parametrize("row", ROWS, ids=lambda r: "-".join(filter(None, [r.op, r.id])))


@rows
def test_node_without_body_runs_by_provider_name(row: Row) -> None:
    check_node(row)


def test_attribute_types_a_value_that_the_model_leaves_untyped() -> None:
    helper = onnx.helper
    number = onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("NPUDynamicQuant", ["x"], ["q", "s"], domain="npu", dst_type=2),
        helper.make_node("MatMulInteger", ["q", "w"], ["y"]),
    ]
    weight = np.ones((16, 4), np.int8)
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", number, ["rows", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("npu", 1)]
    made = session(helper.make_model(graph, opset_imports=opsets, ir_version=7), NPU)
    x = _float(3, 16)
    got = to_torch(made.run_with_ort_values(["y"], {"x": to_ortvalue(x)})[0])
    quantized = all_ops()["npu_dynamic_quant"].call_reference(x)[0]
    assert torch.equal(got, quantized.int() @ torch.from_numpy(weight).int())


def test_chain_of_untyped_values_runs() -> None:
    """The start of a decoder block: norm, projection, rotation, gate; npu and standard nodes."""
    helper = onnx.helper
    t, heads, width = 6, 4, 32
    hidden = heads * width
    weights = {
        "gamma": _half(hidden),
        "w": _half(hidden, hidden) / 16,
        "cos": _half(1, t, 1, width),
        "sin": _half(1, t, 1, width),
    }
    nodes = [
        ("NPURmsNorm", ["x", "gamma"], ["h", "rstd"], "npu", {"epsilon": 1e-6}),
        ("MatMul", ["h", "w"], ["q"], "", {}),
        ("Reshape", ["q", "heads"], ["q4"], "", {}),
        ("NPURotaryMul", ["q4", "cos", "sin"], ["rotated"], "npu", {"rotary_mode": "half"}),
        ("Reshape", ["rotated", "flat"], ["r"], "", {}),
        ("NPURmsNorm", ["r", "x", "gamma"], ["n", "rstd2", "sum"], "npu", {"epsilon": 1e-6}),
        ("NPUGeluV2", ["n"], ["y"], "npu", {"approximate": "tanh"}),
    ]
    shapes = {"heads": [1, t, heads, width], "flat": [1, t, hidden]}
    initializers = [onnx.numpy_helper.from_array(v.numpy(), n) for n, v in weights.items()]
    initializers += [
        onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in shapes.items()
    ]
    number = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        [
            helper.make_node(op, i, o, name=f"/{o[0]}", domain=domain, **a)
            for op, i, o, domain, a in nodes
        ],
        "main_graph",
        [helper.make_tensor_value_info("x", number, [1, t, hidden])],
        [helper.make_tensor_value_info(n, number, [1, t, hidden]) for n in ("y", "sum")],
        initializers,
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("npu", 1)]
    made = session(helper.make_model(graph, opset_imports=opsets, ir_version=7), NPU)
    assert_on_npu(made)
    x = _half(1, t, hidden)
    got = [to_torch(o) for o in made.run_with_ort_values(["y", "sum"], {"x": to_ortvalue(x)})]

    def run(name: str, *args: Any) -> Any:
        return all_ops()[name].call_reference(*args)[0]

    h = run("npu_rms_norm", x, weights["gamma"], 1e-6)
    q = (h.float() @ weights["w"].float()).half().reshape(1, t, heads, width)
    r = run("npu_rotary_mul", q, weights["cos"], weights["sin"], "half").reshape(1, t, hidden)
    n, _, total = all_ops()["npu_add_rms_norm"].call_reference(r, x, weights["gamma"], 1e-6)
    want = [torch.nn.functional.gelu(n.float(), approximate="tanh").half(), total]
    # Several consecutive roundings to 2^-11, on values of up to 16.
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=4e-3, atol=2e-2)
