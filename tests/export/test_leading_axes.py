"""Quantised products take activations as they are, where Reshapes made matrices of them."""

from __future__ import annotations

import copy
import math

import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.converters import quantize_weights
from onnxruntime_npu.opdef import torch_library
from torch import nn

BATCH, SEQUENCE, HEADS, SIZE = 3, 5, 4, 16
WIDTH = HEADS * SIZE
PROVIDERS = ["NPUExecutionProvider", "CPUExecutionProvider"]
SCHEMES = ["w4a16", "w8a16", "w8a8", "w8a8_dynamic", "w4a8"]
# A product is rounded to 10 bits after a sum in another order, and what it is then quantised to may
# be the next of 127 steps up to 2, which a weight of the second product, up to 1/11, multiplies.
CLOSE = 2.0**-8


class Chain(nn.Module):
    """Two products with a function of each element between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x).relu())


class Heads(nn.Module):
    """A product whose columns are heads, turned and joined before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.first(x).reshape(*x.shape[:-1], HEADS, SIZE)
        return self.second(heads.flip(-2).reshape(*x.shape[:-1], WIDTH))


class Turned(nn.Module):
    """A product of what a Transpose makes, whose leading axes change places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x.transpose(0, 1)).transpose(0, 1)


class Matrices(nn.Module):
    """What is a matrix for another reason than the product stays one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x.reshape(-1, WIDTH)).sort(0).values


class PackedRows(nn.Module):
    """A product of rows of int4, of which eight are in an element."""

    def __init__(self) -> None:
        super().__init__()
        words = torch.randint(-(2**31), 2**31 - 1, (WIDTH, WIDTH // 8), dtype=torch.int32)
        self.register_buffer("weight", words)
        self.register_buffer("scale", torch.rand(WIDTH) / 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, steps = torch.ops.npu.npu_dynamic_quant(x.reshape(-1, WIDTH), dst_type=torch.quint4x2)
        result = torch.ops.npu.npu_quant_matmul(
            rows, self.weight, self.scale.float(), pertoken_scale=steps, output_dtype=torch.float16
        )
        return result.reshape(x.shape)


def exported(module: nn.Module, scheme: str | None, tmp_path):
    torch.manual_seed(0)
    model = module.eval().half()
    path = tmp_path / "model.onnx"
    x = torch.randn(BATCH, SEQUENCE, WIDTH).half()
    static = {"calibration": [(x,)], "static_error": math.inf} if scheme == "w8a8" else {}
    if scheme:
        quantize_weights(model, scheme, group_size=32, **static)
    shapes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    report = onnxruntime_npu.export(model, (x,), path, dynamic_shapes=shapes)
    return model, path, report


def compare(model: nn.Module, path, provider: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=[provider])
    for batch, sequence in ((BATCH, SEQUENCE), (1, 1), (2, 9), (1, 7)):
        x = torch.randn(batch, sequence, WIDTH).half()
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        expected = copy.deepcopy(model)(x)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_chain_of_products_has_no_reshapes(tmp_path, scheme, provider):
    model, path, report = exported(Chain(), scheme, tmp_path)
    assert report.nodes.get("Reshape", 0) == 0
    compare(model, path, provider)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_heads_are_split_and_joined_once(tmp_path, scheme):
    model, path, report = exported(Heads(), scheme, tmp_path)
    assert report.nodes["Reshape"] == 2
    compare(model, path, PROVIDERS[0])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("scheme", ["w4a16", "w8a8_dynamic"])
def test_a_transpose_is_not_right_before_a_product_of_floats(tmp_path, scheme, provider):
    model, path, report = exported(Turned(), scheme, tmp_path)
    assert ("Reshape" in report.nodes) == (scheme == "w4a16")
    compare(model, path, provider)


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8_dynamic"])
def test_a_matrix_of_the_model_stays_one(tmp_path, scheme):
    model, path, report = exported(Matrices(), scheme, tmp_path)
    assert report.nodes["Reshape"] >= 1
    compare(model, path, PROVIDERS[0])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_rows_of_int4_keep_their_packed_size(tmp_path, provider):
    torch_library.register()
    model, path, report = exported(PackedRows(), None, tmp_path)
    assert report.nodes.get("Reshape", 0) == 0
    shapes = {
        value.name: [size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.value_info
    }
    assert ["batch", "sequence", WIDTH // 8] in shapes.values()
    compare(model, path, provider)
