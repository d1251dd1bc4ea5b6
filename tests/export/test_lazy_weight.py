"""Weights that are read when they are needed: values, what takes memory, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from onnxruntime_npu import torch_device
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter.tracing import save, to_onnx, trace
from onnxruntime_npu.exporter.weights.lazy_weight import LazyWeight
from onnxruntime_npu.exporter.weights.parameters import (
    as_lazy,
    replace_parameters,
    taken_weights,
)
from onnxruntime_npu.exporter.weights.safetensors_file import SafetensorsFile
from safetensors.torch import save_file
from torch import nn


class Reads:
    """A bfloat16 weight [6, 4] that counts how often it is read."""

    def __init__(self) -> None:
        self.count = 0
        self.stored = torch.arange(24.0).view(6, 4).bfloat16()
        self.weight = LazyWeight.computed(self.read, (6, 4), torch.bfloat16).to(torch.float32)

    def read(self) -> torch.Tensor:
        self.count += 1
        return self.stored


# Operations on a float32 tensor [6, 4] whose result is a weight again.
MOVES = {
    "join": lambda w: torch.cat([w, w]).t().contiguous(),
    "halves": lambda w: w.chunk(2)[1],
    "expert": lambda w: w.view(2, 3, 4)[1].transpose(0, 1),
    "stack": lambda w: torch.stack([w, w])[:, 1:3],
    "narrow": lambda w: w.to(torch.float16),
    "rounded": lambda w: w.to(torch.bfloat16).float(),
    "clone": lambda w: w.detach().clone().unsqueeze(0).flatten(1),
}


@pytest.mark.parametrize("name", MOVES)
def test_moved_and_converted_values_are_read_at_use(name):
    reads = Reads()
    moved = MOVES[name](reads.weight)
    expected = MOVES[name](reads.stored.float())
    assert isinstance(moved, LazyWeight)
    assert reads.count == 0
    assert (moved.shape, moved.dtype) == (expected.shape, expected.dtype)
    assert moved.stride() == expected.stride()
    value = moved.value()
    assert type(value) is torch.Tensor
    assert torch.equal(value, expected)


def test_any_other_operation_computes_with_the_values():
    weight, stored = Reads().weight, Reads().stored.float()
    x = torch.randn(3, 4)
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, stored))
    assert torch.equal(1 + weight, 1 + stored)
    assert torch.equal(torch.cat([weight, x]), torch.cat([stored, x]))
    ids = torch.tensor([[5, 0]])
    assert torch.equal(nn.functional.embedding(ids, weight), stored[ids])
    assert torch.equal(weight[ids], stored[ids])
    assert weight[2, 1].item() == stored[2, 1].item()


def test_gradients_pass_through_products():
    x = torch.ones(2, 4, requires_grad=True)
    nn.functional.linear(x, Reads().weight).sum().backward()
    assert torch.equal(x.grad, Reads().stored.float().sum(0).expand(2, 4))


def test_values_of_the_last_uses_are_kept():
    reads = Reads()
    joined = torch.cat([reads.weight, reads.weight])
    for _ in range(3):
        joined[1:3].sum()
        joined.t().sum()
    assert reads.count == 2  # each part of the joined weight once


def test_changing_a_weight_is_an_error():
    with pytest.raises(RuntimeError, match="expected an operation that reads weights, got"):
        Reads().weight.mul_(2)


@pytest.mark.parametrize("to", [{"dtype": torch.float16}, {"device": "npu"}], ids=str)
def test_a_module_is_moved_and_converted_with_its_values(to):
    if "device" in to:
        if not torch_device.is_built():
            pytest.skip("this build has no torch device")
        torch_device.register()
    first, tied, bias = nn.Linear(4, 6), nn.Linear(4, 6), torch.randn(6)
    first.weight = tied.weight = nn.Parameter(Reads().weight, requires_grad=False)
    first.bias = tied.bias = nn.Parameter(bias)
    moved = nn.ModuleList([first, tied]).to(**to)
    assert moved[0].weight is moved[1].weight
    expected = Reads().stored.float().to(**to)
    assert (first.weight.dtype, first.weight.device) == (expected.dtype, expected.device)
    assert torch.equal(first.weight * 1, expected)
    x = torch.ones(2, 4).to(**to)
    assert torch.equal(tied(x), nn.functional.linear(x, expected, bias.to(**to)))


def test_a_copy_of_a_model_shares_weights_and_ties():
    layer, tied = nn.Linear(4, 6), nn.Linear(4, 6)
    tied.weight = layer.weight
    model = nn.ModuleList([layer, tied])
    replace_parameters(model, lambda _name, parameter: as_lazy(parameter))
    copied = copy.deepcopy(model)
    assert copied[0].weight is copied[1].weight
    assert copied[0].weight is not model[0].weight
    assert copied[0].weight.value().data_ptr() == layer.weight.value().data_ptr()


def test_taken_weights_leave_shapes_only():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    real = model[1].weight
    model[0].weight = nn.Parameter(Reads().weight.t().contiguous().t(), requires_grad=False)
    model.register_buffer("bias", Reads().weight[0])
    with taken_weights(model) as weights:
        assert list(weights) == ["0.weight", "bias"]
        assert type(model[0].weight) is nn.Parameter
        assert type(model.bias) is torch.Tensor
        assert model[0].weight.stride() == weights["0.weight"].stride()
    assert torch.equal(weights["0.weight"].value(), Reads().stored.float())
    assert torch.equal(model[0].weight.value(), Reads().stored.float())
    assert torch.equal(model[1].weight, real)
    assert isinstance(model.bias, LazyWeight)
    assert torch.equal(model.bias.value(), Reads().stored[0].float())


def written(weight: torch.Tensor, path: Path) -> Path:
    """Write a product with a weight as an ONNX file."""
    layer = nn.Linear(4, 6, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    traced = trace(layer, (torch.ones(3, 4, dtype=weight.dtype),), None, None)
    save(to_onnx(traced, 18, ["x"], ["y"]), path, f"{path.name}.data")
    return path


def test_a_traced_module_is_written_with_the_values(tmp_path):
    path = written(Reads().weight * 1.0 + Reads().weight, tmp_path / "ordinary.onnx")
    lazy = written(LazyWeight.of(2 * Reads().stored).to(torch.float32), tmp_path / "lazy.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    results = [
        InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for file in (path, lazy)
    ]
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[1], x @ (2 * Reads().stored.float().numpy()).T, rtol=1e-5)


def test_values_that_the_dtype_cannot_hold_are_an_error(tmp_path):
    weight = LazyWeight.of(torch.full((6, 4), 1e5)).to(torch.float16)
    with pytest.raises(ExportError, match=r"weight has values that torch.float16 cannot hold: pas"):
        written(weight, tmp_path / "model.onnx")


def test_a_file_is_not_resident_after_a_use(tmp_path):
    save_file({"w": torch.randn(2048, 2048).bfloat16(), "i": torch.arange(3)}, tmp_path / "f")
    file = SafetensorsFile(tmp_path / "f")

    def resident() -> int:
        """Bytes of the mapped file that are resident."""
        lines = Path("/proc/self/smaps").read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith(str(tmp_path / "f")))
        return next(int(li.split()[1]) for li in lines[start:] if li.startswith("Rss:")) * 1024

    weight = file.get_slice("w")[...].to(torch.float32)
    assert resident() < 2**20
    assert weight.sum().isfinite()
    assert resident() < 2**20
    assert torch.equal(file.get_slice("i")[...], torch.arange(3))
