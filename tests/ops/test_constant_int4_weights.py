"""Constant int4 weights in models that do not declare the depth of x: words along both axes."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper
from op_paths import to_ortvalue, to_torch

K, N, EXPERTS, GROUP, ROWS = 64, 48, 3, 32, 7


def _weight(*lead: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-8, 8, (*lead, K, N), generator=generator, dtype=torch.int32)


def _words(weight: torch.Tensor, along_columns: bool) -> torch.Tensor:
    """Eight elements of a row, or of a column, to a word."""
    lead = weight.shape[:-2]
    rows = (weight.transpose(-1, -2) if along_columns else weight).contiguous()
    packed = torch.ops.npu.npu_convert_weight_to_int4pack(rows.flatten(0, -2))
    packed = packed.unflatten(0, (*lead, rows.shape[-2]))
    return (packed.transpose(-1, -2) if along_columns else packed).contiguous()


def _run(
    op_type: str,
    inputs: str,
    tensors: dict[str, torch.Tensor],
    constants: list[str],
    **attributes: Any,
) -> torch.Tensor:
    """Run a node whose inputs have no declared sizes, except for the constants."""

    def info(name: str) -> onnx.ValueInfoProto:
        element = helper.np_dtype_to_tensor_dtype(tensors[name].numpy().dtype)
        sizes = [f"{name}{axis}" for axis in range(tensors[name].dim())]
        return helper.make_tensor_value_info(name, element, sizes)

    given = [name for name in tensors if name not in constants]
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs.split(","), ["y"], domain="npu", **attributes)],
        "words",
        [info(name) for name in given],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(tensors[name].numpy(), name) for name in constants],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("npu", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["NPUExecutionProvider"])
    (y,) = session.run_with_ort_values(["y"], {name: to_ortvalue(tensors[name]) for name in given})
    return to_torch(y)


def _scale(*shape: int) -> torch.Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(4)) + 0.5) / 16


@pytest.mark.parametrize("along_columns", [False, True])
def test_weight_quant_batchmatmul(along_columns: bool) -> None:
    weight, scale = _weight(), _scale(K // GROUP, N).half()
    x = torch.randn(ROWS, K, generator=torch.Generator().manual_seed(5)).half()
    y = _run(
        "NPUWeightQuantBatchMatmulV2",
        "x,w,scale",
        {"x": x, "w": _words(weight, along_columns), "scale": scale},
        constants=["w", "scale"],
        antiquant_group_size=GROUP,
    )
    exact = x.double() @ (weight.double() * scale.double().repeat_interleave(GROUP, 0))
    # Weights and results are rounded to float16.
    torch.testing.assert_close(y.double(), exact, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("along_columns", [False, True])
@pytest.mark.parametrize("blocks", [1, K // GROUP])
def test_grouped_matmul_of_int8_and_int4(along_columns: bool, blocks: int) -> None:
    weight, scale = _weight(EXPERTS), _scale(EXPERTS, blocks, N)
    x = torch.randint(-128, 128, (ROWS, K), generator=torch.Generator().manual_seed(6))
    floats = weight.double() * scale.double().repeat_interleave(K // blocks, 1)
    tensors = {
        "x": x.to(torch.int8),
        "w": _words(weight, along_columns),
        "bias": (8 * floats.sum(1)).float(),
        "scale": scale,
        "tokens": torch.full((ROWS,), 0.01),
        "groups": torch.tensor([3, 3, ROWS]),
    }
    y = _run(
        "NPUGroupedMatmul",
        "x,w,bias,scale,,,tokens,groups",
        tensors,
        constants=["w", "scale", "bias"],
        group_type=0,
        output_dtype=1,
    )
    exact = torch.stack([x[i].double() @ floats[0 if i < 3 else 2] for i in range(ROWS)])
    # The result is float16, whose last place is 2^-10 of it.
    torch.testing.assert_close(y.double(), 0.01 * exact, rtol=2.0**-10, atol=1e-3)
